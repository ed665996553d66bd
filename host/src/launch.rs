//! What reaches a driver: one or two kernels, each with its grid and the bytes of its parameters.
use crate::{Boxes, Contract, Error};
use spec::{
    AppendParams, CombineParams, DecodeParams, FwdParams, HopperPagedParams, HopperParams, KERNELS,
    MergeParams, PagedParams, RaggedMap, SplitParams, TensorMap, VarlenParams,
};

/// The kernels of one launch, with everything that they are told: a plan
/// [bound](crate::plan::Plan::bind) to the tensors of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Launch {
    first: Kernel,
    /// Combines what the splits of the first leave.
    second: Option<Kernel>,
    /// Q, K, V and O, of which the first kernel's parameters begin with the tensor maps. Only a driver
    /// encodes these.
    maps: Option<[Boxes; 4]>,
    /// The parameters, without tensor maps.
    params: Bytes,
    reason: &'static str,
}

/// A kernel, and which bytes of [`Launch::params`] are its own.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Kernel {
    /// Its place in [`KERNELS`].
    place: u16,
    grid: [u32; 3],
    params: [u16; 2],
}

/// Bytes of the largest parameters, tensor maps apart, beside those of the kernel that combines splits.
const MOST: usize = 512;
/// Bytes of four tensor maps.
const MAPS: usize = 4 * size_of::<TensorMap>();

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(8))]
struct Bytes([u8; MOST]);

#[repr(align(64))]
struct WithMaps([u8; MAPS + MOST]);

/// Parameters of a kernel.
///
/// # Safety
/// Every byte of it is initialised: it is plain data without padding (the tests here and in `spec` hold it).
pub(crate) unsafe trait Params: Copy {
    /// How many tensor maps it begins with.
    const MAPS: usize = 0;
}
macro_rules! params {
    ($($plain:ty),*; with maps: $($mapped:ty),*) => {
        // SAFETY: the sizes are those of the fields, as the tests hold.
        $(unsafe impl Params for $plain {})*
        // SAFETY: the same.
        $(unsafe impl Params for $mapped {
            const MAPS: usize = 4;
        })*
    };
}
params! {
    FwdParams, SplitParams<FwdParams>, VarlenParams<FwdParams>, PagedParams, DecodeParams, CombineParams,
    AppendParams, MergeParams;
    with maps: HopperParams, SplitParams<HopperParams>, VarlenParams<HopperParams<RaggedMap>>,
    HopperPagedParams
}

impl Launch {
    /// One kernel, by its place in [`KERNELS`], that is told no tensor map.
    pub(crate) fn new<P: Params>(place: usize, grid: [u32; 3], params: &P) -> Self {
        const { assert!(P::MAPS == 0) }
        Self::from_params(place, grid, params, None)
    }

    /// One kernel that is told the tensor maps of Q, K, V and O: what `params` has in their place is ignored.
    pub(crate) fn with_maps<P: Params>(place: usize, grid: [u32; 3], params: &P, maps: [Boxes; 4]) -> Self {
        const { assert!(P::MAPS == 4) }
        Self::from_params(place, grid, params, Some(maps))
    }

    fn from_params<P: Params>(place: usize, grid: [u32; 3], params: &P, maps: Option<[Boxes; 4]>) -> Self {
        let mut bytes = Bytes([0; MOST]);
        let own = &bytes_of(params)[P::MAPS * size_of::<TensorMap>()..];
        bytes.0[..own.len()].copy_from_slice(own);
        let first = Kernel { place: place as u16, grid, params: [0, own.len() as u16] };
        Launch { first, second: None, maps, params: bytes, reason: "" }
    }

    /// The same, and then a kernel that is told `params`.
    pub(crate) fn then<P: Params>(mut self, place: usize, grid: [u32; 3], params: &P) -> Self {
        const { assert!(P::MAPS == 0) }
        let (own, start) = (bytes_of(params), usize::from(self.first.params[1]));
        let end = start + own.len();
        self.params.0[start..end].copy_from_slice(own);
        self.second = Some(Kernel { place: place as u16, grid, params: [start as u16, end as u16] });
        self
    }

    /// The same, and then a kernel with the same grid and parameters.
    pub(crate) fn then_alike(mut self, place: usize) -> Self {
        self.second = Some(Kernel { place: place as u16, ..self.first });
        self
    }

    /// The same for this reason.
    pub(crate) const fn because(mut self, reason: &'static str) -> Self {
        self.reason = reason;
        self
    }

    /// The kernel that does the work, the first where there are two: its symbol, threads and shared memory.
    pub const fn contract(&self) -> &'static Contract {
        &KERNELS[self.first.place as usize]
    }

    /// Its thread blocks.
    pub const fn grid(&self) -> [u32; 3] {
        self.first.grid
    }

    /// Why this kernel.
    pub const fn reason(&self) -> &'static str {
        self.reason
    }

    /// The bytes of its parameters, without tensor maps. Their layout is the kernel's own, and may change
    /// with every version.
    #[doc(hidden)]
    pub fn params(&self) -> &[u8] {
        self.bytes(&self.first)
    }

    fn bytes(&self, kernel: &Kernel) -> &[u8] {
        let [start, end] = kernel.params.map(usize::from);
        &self.params.0[start..end]
    }

    /// The places in [`KERNELS`] of its kernels.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.first).chain(self.second).map(|kernel| kernel.place.into())
    }

    /// What its tensor maps describe.
    pub(crate) fn maps(&self) -> &[Boxes] {
        self.maps.as_ref().map_or(&[], |maps| maps)
    }

    /// Hands each kernel's place in [`KERNELS`], its grid and the bytes of its parameters to `launch`, in the
    /// order of their launches, with the tensor maps that `encode` makes.
    ///
    /// # Errors
    /// Those of either.
    pub(crate) fn each(
        &self,
        mut encode: impl FnMut(&Boxes) -> Result<TensorMap, Error>,
        mut launch: impl FnMut(usize, [u32; 3], &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (Kernel { place, grid, .. }, own) = (self.first, self.bytes(&self.first));
        match &self.maps {
            None => launch(place.into(), grid, own)?,
            Some(maps) => {
                let mut all = WithMaps([0; MAPS + MOST]);
                let (places, rest) = all.0.split_at_mut(MAPS);
                for (bytes, map) in places.chunks_exact_mut(size_of::<TensorMap>()).zip(maps) {
                    let TensorMap { words } = encode(map)?;
                    bytes
                        .as_chunks_mut()
                        .0
                        .iter_mut()
                        .zip(words)
                        .for_each(|(b, word)| *b = word.to_ne_bytes());
                }
                rest[..own.len()].copy_from_slice(own);
                launch(place.into(), grid, &all.0[..MAPS + own.len()])?;
            }
        }
        self.second.map_or(Ok(()), |kernel| launch(kernel.place.into(), kernel.grid, self.bytes(&kernel)))
    }
}

/// The bytes of a kernel's parameters.
fn bytes_of<P: Params>(params: &P) -> &[u8] {
    // SAFETY: as long as the value lives its bytes can be read, and by the trait all are initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(params).cast(), size_of::<P>()) }
}
