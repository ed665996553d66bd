//! Tensors beside Q, K and V, in host memory: slopes, sinks, a bias, prefixes, and bits of masks.
use super::alibi::Slopes;
use super::arithmetic::{decode, encode};
use super::inputs::Random;
use super::work::Binder;
use ferroflash::DType;
use ferroflash::plan::Problem;
use ferroflash::request::{AttentionRequest, Bias, Descales, Index, KvScale, Mask, MaskBits, Prefix, Sinks};

/// Tensors of a launch beside Q, K and V. `None` is a tensor that the problem does not have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extras {
    /// ALiBi slopes.
    pub slopes: Option<Slopes>,
    /// Attention sinks: one logit per query head.
    pub sinks: Option<Vec<f32>>,
    /// The numbers that the kernel adds to scores.
    pub bias: Option<BiasTensor>,
    /// The number of keys of each sequence's prefix.
    pub prefixes: Option<Vec<i32>>,
    /// One bit per query and key.
    pub bits: Option<BitsTensor>,
    /// The scales of Q, K and V of e4m3, one per batch and key head.
    pub descales: Option<[Vec<f32>; 3]>,
}

/// A bias `[batch or 1, heads or 1, queries or 1, keys]`.
#[derive(Clone, Debug, PartialEq)]
pub struct BiasTensor {
    dtype: DType,
    shape: [usize; 4],
    /// Number of elements from one row to the next row.
    row: usize,
    bytes: Vec<u8>,
}

/// A mask of bits `[batch or 1, heads or 1, queries, columns]`. Each row fills whole bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct BitsTensor {
    shape: [usize; 4],
    bytes: Vec<u8>,
}

/// Returns the index of row `at` among the rows of a shape. An extent of 1 is broadcast.
fn row(shape: [usize; 4], at: [usize; 3]) -> usize {
    let [_, heads, rows, _] = shape;
    let [batch, head, query] = [0, 1, 2].map(|dim| if shape[dim] == 1 { 0 } else { at[dim] });
    (batch * heads + head) * rows + query
}

impl BiasTensor {
    /// Creates a bias of contiguous elements. In memory, rows of 16-bit elements get an even number of
    /// elements.
    pub fn new(dtype: DType, shape: [usize; 4], elements: &[u8]) -> Self {
        Self::padded(dtype, shape, shape[3].next_multiple_of(4 / dtype.bytes().min(4)), elements)
    }

    /// Creates a bias with `row` elements from one row to the next. NaNs fill the gaps.
    fn padded(dtype: DType, shape: [usize; 4], row: usize, elements: &[u8]) -> Self {
        let (own, gap) = (shape[3] * dtype.bytes(), (row - shape[3]) * dtype.bytes());
        let rows = elements.chunks(own.max(1));
        let bytes = rows.flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(0xff, gap))).collect();
        BiasTensor { dtype, shape, row, bytes }
    }

    /// Returns the element of a query and a key: `[batch, head, query]`, key.
    pub fn of(&self, at: [usize; 3], key: usize) -> f32 {
        let element = row(self.shape, at) * self.row + key;
        let bytes = &self.bytes[element * self.dtype.bytes()..];
        match self.dtype {
            DType::F32 => f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            half => decode(half, u16::from_ne_bytes([bytes[0], bytes[1]])),
        }
    }

    /// Returns the element type.
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the shape.
    pub fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// Returns the number of bytes in memory.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the index of [`BiasTensor::of`]'s element among all elements.
    pub(super) fn index(&self, at: [usize; 3], key: usize) -> usize {
        row(self.shape, at) * self.shape[3] + key
    }

    /// Returns the bytes of the elements of a tensor with this tensor's rows in memory, and the bytes between
    /// the rows. Behind a row of an odd number of 16-bit elements, one element is neither.
    pub(super) fn of_rows(&self, bytes: &[u8]) -> [Vec<u8>; 2] {
        let (own, each) = (self.shape[3] * self.dtype.bytes(), self.row * self.dtype.bytes());
        let rows = bytes.chunks(each.max(1));
        let gaps = rows.clone().flat_map(|row| &row[own.next_multiple_of(4)..]).copied().collect();
        [rows.flat_map(|row| &row[..own]).copied().collect(), gaps]
    }

    /// Replaces each element `x` of an f32 bias by `f(index, x)`.
    #[cfg(test)]
    pub(super) fn map(&mut self, f: impl Fn(usize, f32) -> f32) {
        let (keys, rows) = (self.shape[3], self.bytes.chunks_mut(4 * self.row));
        let own = rows.flat_map(|row| row.as_chunks_mut().0.iter_mut().take(keys));
        own.enumerate().for_each(|(i, x)| *x = f(i, f32::from_ne_bytes(*x)).to_ne_bytes());
    }

    /// Returns these elements as f32.
    pub(super) fn numbers(dtype: DType, elements: &[u8]) -> Vec<f32> {
        match dtype {
            DType::F32 => elements.as_chunks().0.iter().map(|x| f32::from_ne_bytes(*x)).collect(),
            half => elements.as_chunks().0.iter().map(|x| decode(half, u16::from_ne_bytes(*x))).collect(),
        }
    }

    /// Returns the view of a tensor with this tensor's rows in memory.
    pub(super) fn view(&self, address: u64) -> Bias {
        let elements = (self.bytes.len() / self.dtype.bytes()) as u64;
        Bias::rows(address, elements, self.dtype, self.shape, self.row)
    }

    /// Rows begin at multiples of `aligned` bytes.
    fn random(random: &mut Random, dtype: DType, shape: [usize; 4], aligned: usize) -> Self {
        let elements = (0..shape.iter().product()).flat_map(|_| {
            // A bias of -inf hides the key.
            let x = if random.bits().is_multiple_of(61) { f64::NEG_INFINITY } else { 2.0 * random.normal() };
            match dtype {
                DType::F32 => (x as f32).to_ne_bytes().to_vec(),
                half => encode(half, x).to_ne_bytes().to_vec(),
            }
        });
        let elements: Vec<u8> = elements.collect();
        let gap = [0, 2, 6][(random.bits() % 3) as usize];
        let row = (shape[3].next_multiple_of(2) + gap).next_multiple_of(aligned / dtype.bytes());
        Self::padded(dtype, shape, row, &elements)
    }
}

impl BitsTensor {
    /// Creates a mask of contiguous rows. Each row fills whole bytes.
    pub fn new(shape: [usize; 4], bytes: Vec<u8>) -> Self {
        BitsTensor { shape, bytes }
    }

    /// Returns whether a query `[batch, head, query]` sees a key. The query's sequence has `keys` keys.
    pub fn sees(&self, at: [usize; 3], key: usize, keys: usize) -> bool {
        let first = keys.saturating_sub(self.shape[3]);
        let Some(bit) = key.checked_sub(first) else { return true };
        let byte = self.bytes[row(self.shape, at) * self.shape[3].div_ceil(8) + bit / 8];
        byte >> (bit % 8) & 1 == 1
    }

    fn view(&self, address: u64) -> MaskBits {
        MaskBits::contiguous(address, self.bytes.len() as u64, self.shape)
    }

    /// Draws bits. Two of three bits are 1. The first two rows see no key, and neither do some other rows.
    fn random(random: &mut Random, shape: [usize; 4]) -> Self {
        let [batch, heads, rows, columns] = shape;
        let row = |row: usize| {
            let none = row < 2 || random.bits().is_multiple_of(23);
            let byte =
                |_| (0..8).fold(0, |byte, bit| byte | u8::from(!random.bits().is_multiple_of(3)) << bit);
            let bytes: Vec<u8> = (0..columns.div_ceil(8)).map(byte).collect();
            if none { vec![0; bytes.len()] } else { bytes }
        };
        BitsTensor { shape, bytes: (0..batch * heads * rows).flat_map(row).collect() }
    }
}

impl Extras {
    /// No extras.
    pub(super) const NONE: Self =
        Extras { slopes: None, sinks: None, bias: None, prefixes: None, bits: None, descales: None };

    /// Draws random extras of a problem. The bias may broadcast every dimension except the keys. Prefixes may
    /// be below 0 or beyond the keys. Some heads have no sink.
    pub fn random(p: &Problem, seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5eed);
        let mut one_of = |all: &[usize]| all[(random.bits() % all.len() as u64) as usize];
        let shape = [one_of(&[p.batch, 1]), one_of(&[p.heads_q, p.heads_q, 1]), p.seqlen_q, p.seqlen_k];
        let shape = [shape[0], shape[1], one_of(&[p.seqlen_q, p.seqlen_q, 1]), shape[3]];
        // An odd seed draws a bias that TMA accepts.
        let for_tma = seed % 2 == 1;
        let shape = if for_tma { [shape[0], shape[1], p.seqlen_q, shape[3]] } else { shape };
        let random = &mut random;
        let sink = |random: &mut Random| match random.bits() % 5 {
            0 => f32::NEG_INFINITY,
            _ => random.normal() as f32,
        };
        let prefix = |random: &mut Random| match random.bits() % 6 {
            0 => [i32::MIN, -1, i32::MAX, p.seqlen_k as i32][(random.bits() % 4) as usize],
            _ => (random.bits() % (p.seqlen_k as u64 + 2)) as i32,
        };
        Extras {
            slopes: p.alibi.then(|| Slopes::random(seed, p.batch, p.heads_q, -1)),
            sinks: p.sinks.then(|| (0..p.heads_q).map(|_| sink(random)).collect()),
            bias: p.bias.map(|dtype| BiasTensor::random(random, dtype, shape, if for_tma { 16 } else { 4 })),
            prefixes: match p.mask {
                Mask::Prefix(Prefix::Each(_)) => Some((0..p.batch).map(|_| prefix(random)).collect()),
                _ => None,
            },
            bits: match p.mask {
                Mask::Bits(bits) => Some(BitsTensor::random(random, bits.shape)),
                _ => None,
            },
            descales: (p.dtype == DType::E4m3).then(|| {
                let scale = |random: &mut Random| 0.5 + (random.bits() % 1024) as f32 / 1024.0;
                [(); 3].map(|()| (0..p.batch * p.heads_k).map(|_| scale(random)).collect())
            }),
        }
    }

    /// Adds the extras to a request.
    pub fn give(&self, request: &mut AttentionRequest<'_>, binder: &mut Binder<'_>) {
        let (scores, mask) = (&mut request.scores, &mut request.mask);
        if let Some(slopes) = &self.slopes {
            scores.alibi = Some(slopes.view(binder.input("alibi_slopes", || bytes!(slopes.values()))));
        }
        if let Some(sinks) = &self.sinks {
            let address = binder.input("sinks", || bytes!(sinks));
            scores.sinks = Some(Sinks { address, elements: sinks.len() as u64 });
        }
        if let Some(bias) = &self.bias {
            scores.bias = Some(bias.view(binder.input("bias", || bias.bytes.clone())));
        }
        if let Some(prefixes) = &self.prefixes {
            let address = binder.input("prefix_lengths", || bytes!(prefixes));
            *mask = Mask::Prefix(Prefix::Each(Index::new(address, prefixes.len() as u64)));
        }
        if let Some(bits) = &self.bits {
            *mask = Mask::Bits(bits.view(binder.input("mask_bits", || bits.bytes.clone())));
        }
        if let (Some(descales), Some([k, _])) = (&self.descales, request.kv.tensors()) {
            let heads = k.shape[2] as i64;
            let scale = |(name, scales): (&'static str, &Vec<f32>)| KvScale::Device {
                address: binder.input(name, || bytes!(scales)),
                elements: scales.len() as u64,
                strides: [heads, 1],
            };
            let names = ["q_descale", "k_descale", "v_descale"];
            let all = names.into_iter().zip(descales).map(scale).collect::<Vec<_>>();
            if let [q, k, v] = all[..] {
                request.descales = Descales::new(q, k, v);
            }
        }
    }

    /// Returns the problem with these extras.
    #[must_use]
    pub fn of(&self, problem: Problem) -> Problem {
        let problem = problem
            .alibi(self.slopes.is_some())
            .sinks(self.sinks.is_some())
            .bias(self.bias.as_ref().map(|bias| bias.dtype));
        let bits = self.bits.as_ref().map(|bits| Mask::Bits(bits.view(0)));
        let prefixes = self.prefixes.as_ref().map(|_| Mask::Prefix(Prefix::Each(Index::new(0, 0))));
        problem.mask(bits.or(prefixes).unwrap_or(problem.mask))
    }
}
