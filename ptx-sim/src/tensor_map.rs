//! Tensor maps: TMA's description of a tensor in device memory.

use std::fmt;

/// Largest number of dimensions of a tensor map.
pub(crate) const MAX_RANK: usize = 5;
const WORDS: usize = 16;
/// The mark in the first word of a map, which prevents other bytes from being decoded as a map.
const MARK: u64 = 0x7465_6e73_0000_0000;

/// Type of a tensor's elements. The variants have the same order as the numbers of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ElementType {
    U8,
    U16,
    U32,
    I32,
    U64,
    I64,
    F16,
    F32,
    F64,
    Bf16,
}

const ELEMENTS: [(ElementType, u32, u64); 10] = [
    (ElementType::U8, 1, 0),
    (ElementType::U16, 2, 0),
    (ElementType::U32, 4, 0),
    (ElementType::I32, 4, 0),
    (ElementType::U64, 8, 0),
    (ElementType::I64, 8, 0),
    (ElementType::F16, 2, 0x7fff_7fff_7fff_7fff),
    (ElementType::F32, 4, 0x7fff_ffff_7fff_ffff),
    (ElementType::F64, 8, 0x7fff_ffff_ffff_ffff),
    (ElementType::Bf16, 2, 0x7fff_7fff_7fff_7fff),
];

impl ElementType {
    fn row(self) -> &'static (ElementType, u32, u64) {
        ELEMENTS.iter().find(|(element, ..)| *element == self).unwrap_or(&ELEMENTS[0])
    }

    /// Number of bytes of one element.
    pub fn bytes(self) -> u32 {
        self.row().1
    }
}

/// The permutation of a box's 16-byte chunks in shared memory: an XOR with the address bits above the chunk's
/// row. The variants have the same order as the numbers of the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Swizzle {
    /// No swizzle.
    #[default]
    None,
    /// Chunks change places within 32 bytes.
    B32,
    /// Chunks change places within 64 bytes.
    B64,
    /// Chunks change places within 128 bytes.
    B128,
}

impl Swizzle {
    const ALL: [Swizzle; 4] = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];

    /// Number of bytes within which chunks are permuted.
    pub(crate) fn span(self) -> u32 {
        16 << self as u32
    }

    /// The swizzled address of the byte at shared address `address`.
    #[inline]
    pub(crate) fn apply(self, address: u32) -> u32 {
        address ^ (address >> 3 & (self.span() - 16))
    }
}

/// The reason why a tensor map cannot be encoded. The driver also refuses such a map, unless the message says
/// otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tensor map: {0}")]
pub struct TensorMapError(String);

/// A tensor in device memory, and the box that one copy moves. The fields are the arguments of
/// `cuTensorMapEncodeTiled`, and dimension 0 is the innermost. The simulator supports no interleaving and
/// ignores L2 promotion.
///
/// ```
/// use ptx_sim::{ElementType, Swizzle, TensorMap};
///
/// let map = TensorMap {
///     element: ElementType::F16,
///     address: 0x1000,
///     dims: &[64, 300],
///     strides: &[128],
///     box_dims: &[64, 128],
///     element_strides: &[1, 1],
///     swizzle: Swizzle::B128,
///     fill_nan: false,
/// };
/// let _words: [u64; 16] = map.encode()?;
/// assert!(TensorMap { strides: &[100], ..map }.encode().is_err());
/// # Ok::<(), ptx_sim::TensorMapError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TensorMap<'t> {
    /// Type of the elements.
    pub element: ElementType,
    /// Address of the first element.
    pub address: u64,
    /// Number of elements in each dimension.
    pub dims: &'t [u64],
    /// Strides in bytes of all dimensions, except for the innermost.
    pub strides: &'t [u64],
    /// Number of elements of the box in each dimension.
    pub box_dims: &'t [u32],
    /// Element strides in each dimension. The simulator only supports 1.
    pub element_strides: &'t [u32],
    /// The swizzle of the box in shared memory.
    pub swizzle: Swizzle,
    /// Whether elements outside of the tensor are NaN instead of zero.
    pub fill_nan: bool,
}

impl TensorMap<'_> {
    /// Encodes the map for a kernel's parameter: 128 bytes, which the caller must align to 64 bytes. Only
    /// this simulator can decode these bytes.
    ///
    /// # Errors
    /// Returns an error if `cuTensorMapEncodeTiled` would refuse the map, or if an element stride is not 1,
    /// which the simulator does not support.
    pub fn encode(&self) -> Result<[u64; WORDS], TensorMapError> {
        self.check().map_err(TensorMapError)?;
        let mut words = [0; WORDS];
        let element = ELEMENTS.iter().position(|(element, ..)| *element == self.element).unwrap_or(0);
        words[0] = MARK
            | element as u64
            | (self.dims.len() as u64) << 8
            | (self.swizzle as u64) << 12
            | u64::from(self.fill_nan) << 16;
        words[1] = self.address;
        for (at, dim) in self.dims.iter().enumerate() {
            words[2 + at] = dim - 1;
        }
        words[7..7 + self.strides.len()].copy_from_slice(self.strides);
        for (at, extent) in self.box_dims.iter().enumerate() {
            words[11] |= u64::from(extent - 1) << (8 * at);
        }
        words[WORDS - 1] = checksum(&words);
        Ok(words)
    }

    fn check(&self) -> Result<(), String> {
        let rank = self.dims.len();
        let lengths = [self.strides.len() + 1, self.box_dims.len(), self.element_strides.len()];
        if !(1..=MAX_RANK).contains(&rank) || lengths != [rank; 3] {
            return Err(format!(
                "1 to 5 dimensions, a box of equal rank, and one stride less; not {rank}, {} and {}",
                self.box_dims.len(),
                self.strides.len()
            ));
        }
        if !self.address.is_multiple_of(16) {
            return Err(format!("the tensor's address {:#x} must be a multiple of 16", self.address));
        }
        if let Some(dim) = self.dims.iter().find(|dim| !(1..=1 << 32).contains(*dim)) {
            return Err(format!("a dimension must have 1 to 2^32 elements, not {dim}"));
        }
        if let Some(stride) = self.strides.iter().find(|stride| *stride % 16 != 0 || **stride >= 1 << 40) {
            return Err(format!("strides must be multiples of 16 bytes below 2^40, not {stride}"));
        }
        if let Some(extent) = self.box_dims.iter().find(|extent| !(1..=256).contains(*extent)) {
            return Err(format!("a box must have 1 to 256 elements in each dimension, not {extent}"));
        }
        let inner = self.box_dims[0] * self.element.bytes();
        if !inner.is_multiple_of(16) {
            return Err(format!("the box's rows have {inner} bytes: must be a multiple of 16"));
        }
        if self.swizzle != Swizzle::None && inner > self.swizzle.span() {
            return Err(format!("rows of {inner} bytes do not fit a swizzle of {}", self.swizzle.span()));
        }
        if self.fill_nan && self.element.row().2 == 0 {
            return Err("integers have no NaN".into());
        }
        match self.element_strides.iter().find(|stride| **stride != 1) {
            Some(stride) if !(1..=8).contains(stride) => {
                Err(format!("element strides must be 1 to 8, not {stride}"))
            }
            Some(_) => Err("the simulator supports only element strides of 1".into()),
            None => Ok(()),
        }
    }
}

fn checksum(words: &[u64; WORDS]) -> u64 {
    words[..WORDS - 1]
        .iter()
        .fold(MARK, |sum, word| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29))
}

/// A decoded map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tiled {
    pub element: ElementType,
    pub element_bytes: u32,
    pub swizzle: Swizzle,
    /// The bits of elements outside of the tensor.
    pub fill: u64,
    pub address: u64,
    pub dims: Vec<u64>,
    /// Strides in bytes of all dimensions, including the innermost.
    pub strides: Vec<u64>,
    pub box_dims: Vec<u32>,
}

impl Tiled {
    /// Decodes `bytes`, or returns `None` if they are no map.
    pub fn decode(bytes: &[u8; 8 * WORDS]) -> Option<Tiled> {
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        if words[0] & !0xffff_ffff != MARK || words[WORDS - 1] != checksum(&words) {
            return None;
        }
        let (element, element_bytes, nan) = *ELEMENTS.get((words[0] & 255) as usize)?;
        let rank = (words[0] >> 8 & 15) as usize;
        let strides = std::iter::once(u64::from(element_bytes)).chain(words[7..6 + rank].iter().copied());
        Some(Tiled {
            element,
            element_bytes,
            swizzle: Swizzle::ALL[(words[0] >> 12 & 3) as usize],
            fill: if words[0] >> 16 & 1 != 0 { nan } else { 0 },
            address: words[1],
            dims: words[2..2 + rank].iter().map(|dim| dim + 1).collect(),
            strides: strides.collect(),
            box_dims: (0..rank).map(|at| (words[11] >> (8 * at) & 255) as u32 + 1).collect(),
        })
    }

    /// Number of bytes of one row of the box.
    pub fn row_bytes(&self) -> u32 {
        self.box_dims[0] * self.element_bytes
    }

    /// Number of bytes of the box.
    pub fn bytes(&self) -> u64 {
        self.box_dims.iter().fold(u64::from(self.element_bytes), |bytes, &extent| bytes * u64::from(extent))
    }

    /// The rows of the box whose first element has the coordinates `at`.
    pub fn rows(&self, at: &[i32]) -> Vec<Row> {
        let count = self.box_dims[1..].iter().product::<u32>();
        let (first, width) = (i64::from(at[0]), i64::from(self.box_dims[0]));
        let (from, to) = (first.clamp(0, self.dims[0] as i64), (first + width).clamp(0, self.dims[0] as i64));
        let element = i64::from(self.element_bytes);
        let row = |number: u32| {
            let (mut left, mut address, mut inside) = (number, self.address, true);
            let axes = at.iter().zip(&self.box_dims).zip(self.dims.iter().zip(&self.strides));
            for ((&start, extent), (&dim, stride)) in axes.skip(1) {
                let index = i64::from(start) + i64::from(left % extent);
                left /= extent;
                inside &= (0..dim as i64).contains(&index);
                address = address.wrapping_add((index as u64).wrapping_mul(*stride));
            }
            let bytes = if inside { (to - from) * element } else { 0 };
            Row {
                address: address.wrapping_add((from * element) as u64),
                skip: ((from - first) * element).clamp(0, width * element) as u32,
                bytes: bytes as u32,
            }
        };
        (0..count).map(row).collect()
    }
}

/// One row of a box: the part of the row that is inside the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub address: u64,
    /// Number of bytes of the box's row before this part.
    pub skip: u32,
    pub bytes: u32,
}

impl fmt::Display for Tiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a tensor of {:?} elements of {} bytes, boxes of {:?}",
            self.dims, self.element_bytes, self.box_dims
        )
    }
}
