//! Decode problems on a cache, as data.
use crate::arithmetic::{decode, encode};
use crate::e4m3;
use crate::masks::{self, fit};
use crate::told::Told;
use ferroflash::DType;
use ferroflash::kernels::AttnInfo;
use ferroflash::plan::Problem;
use ferroflash::request::{Mask, Splits};

/// Number of rows of Q and O behind the last sequence of a varlen batch.
const NOBODYS: usize = 3;

/// Memory layout of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// `[batch][max_k][heads][head_dim]`.
    Dense,
    /// `[batch][heads][max_k][head_dim]`.
    DenseHnd,
    /// [`Pages::Dense`] with one page index per sequence (`cache_batch_idx`).
    Rows,
    /// Pages `[page][heads][head_dim]` with this number of keys.
    Nhd(usize),
    /// Pages `[heads][page][head_dim]` with this number of keys.
    Hnd(usize),
    /// Pages that hold keys and values, `[2][page][heads][head_dim]`.
    Interleaved(usize),
}

impl Pages {
    /// Returns whether each sequence has one page, as long as the longest sequence.
    pub(super) fn are_whole(self) -> bool {
        matches!(self, Pages::Dense | Pages::DenseHnd | Pages::Rows)
    }
}

/// Groups of consecutive sequences that share their first pages.
#[derive(Clone, Debug, PartialEq)]
pub struct Shared {
    /// Each group's number of sequences, and the number of pages that they share.
    pub groups: Vec<[usize; 2]>,
    /// Whether the device knows the groups. Otherwise all groups are equal, and the host knows them.
    pub varlen: bool,
    /// Whether the launch makes two passes even if they do not pay.
    pub always: bool,
}

impl Shared {
    /// Creates groups of these numbers of sequences and shared pages. If all groups are equal, the host knows
    /// them. A launch always makes two passes.
    pub fn new(groups: impl Into<Vec<[usize; 2]>>) -> Self {
        let groups = groups.into();
        let varlen = groups.iter().any(|group| *group != groups[0]);
        Shared { groups, varlen, always: true }
    }

    /// Returns the group of sequence `b`, and the sequence's index in the group.
    pub(super) fn group(&self, mut b: usize) -> Option<(usize, usize)> {
        for (g, [count, _]) in self.groups.iter().enumerate() {
            if b < *count {
                return Some((g, b));
            }
            b -= count;
        }
        None
    }

    /// Returns the number of pages that sequence `b` shares.
    pub(super) fn pages(&self, b: usize) -> usize {
        self.group(b).map_or(0, |(g, _)| self.groups[g][1])
    }
}

/// The integers of an int8 cache are normal numbers times this number.
const INTEGERS: f32 = 32.0;

/// A decode problem and the seed of its inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodeCase {
    /// Element type of queries and output.
    pub dtype: DType,
    /// Element type of the cache. An e4m3 cache has scale 2 for keys and 1/2 for values. In an int8 cache,
    /// every row has its own scales.
    pub cache: DType,
    /// Number of keys of each sequence that the cache holds. The rows behind these keys are NaN.
    pub filled: Vec<usize>,
    /// Seed of each sequence's queries, keys and values.
    pub seeds: Vec<u64>,
    /// Upper bound of a sequence's keys.
    pub max_k: usize,
    /// Queries per sequence.
    pub queries: usize,
    /// Queries of each sequence of a varlen batch, or `None` if all sequences have `queries`.
    pub packed: Option<Vec<usize>>,
    /// Numbers of query heads and of key heads.
    pub heads: [usize; 2],
    /// Columns of a head.
    pub head_dim: usize,
    /// Number of columns of values and of O; `None` for the number of the keys' columns.
    pub head_dim_v: Option<usize>,
    /// Whether values are the first columns of keys (MLA).
    pub latent: bool,
    /// Memory layout of keys and values.
    pub pages: Pages,
    /// The keys that a query sees.
    pub mask: Mask,
    /// Factor of the scores; `None` is the default. A latent cache has no default.
    pub scale: Option<f32>,
    /// Softcap of the scores.
    pub softcap: Option<f32>,
    /// Whether the problem has ALiBi slopes.
    pub alibi: bool,
    /// Whether the problem has attention sinks.
    pub sinks: bool,
    /// Element type of the bias, if the problem has one.
    pub bias: Option<DType>,
    /// Number of splits per sequence.
    pub splits: Splits,
    /// Whether the block that finishes a sequence last combines its splits. Otherwise a second kernel
    /// combines them.
    pub counters: bool,
    /// Whether the scales of keys that no query of their sequence sees are poisoned, in an int8 cache. All
    /// launches must then find the lengths of [`Told::Filled`].
    pub poisoned_scales: bool,
    /// Seed of the page order and of the sinks.
    pub seed: u64,
    /// The prefixes that groups of sequences share, on pages.
    pub shared: Option<Shared>,
    /// The integers in device memory, one entry per launch of one plan. The first entry is [`Told::Filled`].
    pub told: Vec<Told>,
}

impl DecodeCase {
    /// Creates a case: f16, one query, 4 query heads and 2 key heads, head dim 64, dense cache, full mask,
    /// counters.
    pub fn new(filled: impl Into<Vec<usize>>) -> Self {
        let filled = filled.into();
        DecodeCase {
            dtype: DType::F16,
            cache: DType::F16,
            max_k: filled.iter().copied().max().unwrap_or(1).max(1),
            seeds: (1..=filled.len() as u64).collect(),
            filled,
            queries: 1,
            packed: None,
            heads: [4, 2],
            head_dim: 64,
            head_dim_v: None,
            latent: false,
            pages: Pages::Dense,
            mask: Mask::Full,
            scale: None,
            softcap: None,
            alibi: false,
            sinks: false,
            bias: None,
            splits: Splits::Auto,
            counters: true,
            poisoned_scales: false,
            seed: 1,
            shared: None,
            told: vec![Told::Filled],
        }
    }

    /// Makes the queries a varlen batch: `queries` has the number of queries of each sequence.
    #[must_use]
    pub fn packed(self, queries: impl Into<Vec<usize>>) -> Self {
        DecodeCase { packed: Some(queries.into()), ..self }
    }

    /// Changes the seed of all inputs.
    #[must_use]
    pub fn seeded(mut self, seed: u64) -> Self {
        self.seeds.iter_mut().for_each(|own| *own = own.wrapping_add(seed).wrapping_sub(1));
        DecodeCase { seed: self.seed.wrapping_add(seed).wrapping_sub(1), ..self }
    }

    /// Returns the number of queries of sequence `b`.
    pub(super) fn queries_of(&self, b: usize) -> usize {
        self.packed.as_ref().map_or(self.queries, |queries| queries[b])
    }

    /// Returns the entries of `cu_seqlens_q`: the first row of Q of each sequence, then the total number of
    /// rows.
    pub(super) fn starts(&self) -> Vec<usize> {
        let ends = (0..self.filled.len()).scan(0, |end, b| {
            *end += self.queries_of(b);
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    }

    /// Returns the number of rows of Q. In a varlen batch, some rows belong to no sequence.
    pub(super) fn q_rows(&self) -> usize {
        self.starts()[self.filled.len()] + if self.packed.is_some() { NOBODYS } else { 0 }
    }

    /// Returns the problem of sequence `b` on `keys` keys.
    pub(super) fn problem(&self, b: usize, keys: usize) -> Problem {
        self.whole().batch(1).seqlen_q(self.queries_of(b)).seqlen_k(keys)
    }

    /// Returns the problem of all sequences, with the maximum numbers of queries and keys per sequence.
    pub(super) fn whole(&self) -> Problem {
        let queries = (0..self.filled.len()).map(|b| self.queries_of(b)).max().unwrap_or(1).max(1);
        let plain = Problem::new(self.dtype, self.filled.len(), queries, self.heads[0], self.head_dim);
        let plain = plain.seqlen_k(self.max_k).heads_k(self.heads[1]).mask(self.mask).alibi(self.alibi);
        let problem = plain.bias(self.bias);
        let problem = self.scale.map_or(problem, |scale| problem.scale(scale));
        self.softcap.map_or(problem, |softcap| problem.softcap(softcap))
    }

    /// Gives the case the scores of an entry, and bits for the case's sizes.
    pub(super) fn of(self, entry: &AttnInfo) -> Self {
        let case = DecodeCase { sinks: self.sinks || entry.scores.sink, bias: entry.scores.bias, ..self };
        DecodeCase { mask: fit(case.whole()).mask, ..case }
    }

    /// Returns the number of columns of values and of O.
    pub(super) fn columns(&self) -> usize {
        self.head_dim_v.unwrap_or(self.head_dim)
    }

    /// Returns the number of buffers of keys and values, and number of tensors per buffer.
    pub(super) fn buffers(&self) -> [usize; 2] {
        match (self.latent, self.pages) {
            (true, _) => [1, 1],
            (false, Pages::Interleaved(_)) => [1, 2],
            (false, _) => [2, 1],
        }
    }

    /// Returns the scale of keys (0) or of values (1). In an int8 cache, it is the scale of row `row`,
    /// counted in `[key][head]`.
    pub(super) fn scale(&self, which: usize, row: usize) -> f32 {
        match self.cache {
            DType::E4m3 => [2.0, 0.5][which],
            DType::Int8 => {
                let bits = ((row * 2 + which) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                let factor = 1.0 + (bits & 0xffff) as f32 / 65536.0;
                // The scales of values have very different magnitudes.
                let exponent = [1 - (bits >> 16) as i32 % 3, -((bits >> 16) as i32 % 11)][which];
                factor * 2f32.powi(exponent) / INTEGERS
            }
            _ => 1.0,
        }
    }

    /// Returns the factor of row `row`, counted in `[key][head]`, in the reference.
    pub(super) fn row_scale(&self, which: usize, row: usize) -> f32 {
        if self.cache == DType::Int8 { self.scale(which, row) } else { 1.0 }
    }

    /// Returns whether no query of sequence `b` sees key `key`.
    pub(super) fn hides(&self, b: usize, key: usize) -> bool {
        masks::hides(&self.problem(b, self.filled[b]), key)
    }

    /// Returns `x` rounded to the cache's type, then converted to the queries' type. The conversion is exact.
    /// An integer of an int8 cache is not multiplied by its scale.
    pub(super) fn number(&self, x: f64, scale: f32) -> u16 {
        match self.cache {
            DType::E4m3 => encode(self.dtype, f64::from(e4m3::decode(e4m3::encode(x)) * scale)),
            DType::Int8 => {
                let integer = encode(DType::Int8, x * f64::from(INTEGERS));
                encode(self.dtype, f64::from(decode(DType::Int8, integer)))
            }
            _ => encode(self.dtype, x),
        }
    }

    /// Converts a value that [`DecodeCase::number`] has returned to the bytes of the cache.
    pub(super) fn stored(&self, bits: u16, scale: f32) -> impl Iterator<Item = u8> + use<> {
        let number = decode(self.dtype, bits);
        let bytes = match self.cache {
            DType::E4m3 => encode(self.cache, f64::from(number / scale)).to_le_bytes(),
            DType::Int8 => encode(self.cache, f64::from(number)).to_le_bytes(),
            _ => bits.to_ne_bytes(),
        };
        bytes.into_iter().take(self.cache.bytes())
    }

    /// Converts bytes of the cache to a value of the queries' type.
    pub(super) fn read(&self, bytes: &[u8], scale: f32) -> u16 {
        match self.cache {
            DType::E4m3 => encode(self.dtype, f64::from(decode(self.cache, bytes[0].into()) * scale)),
            DType::Int8 => encode(self.dtype, f64::from(decode(self.cache, bytes[0].into()))),
            _ => u16::from_ne_bytes([bytes[0], bytes[1]]),
        }
    }

    /// Returns the number of elements of one key over all key heads.
    pub(super) fn row(&self) -> usize {
        self.heads[1] * self.head_dim
    }

    /// Returns the number of keys per page, and a function that returns the number of pages of a sequence.
    pub(super) fn paging(&self) -> (usize, impl Fn(usize) -> usize) {
        let page = match self.pages {
            Pages::Dense | Pages::DenseHnd | Pages::Rows => self.max_k,
            Pages::Nhd(page) | Pages::Hnd(page) | Pages::Interleaved(page) => page,
        };
        let whole = self.pages.are_whole();
        (page, move |filled| if whole { 1 } else { filled.div_ceil(page) })
    }
}

impl std::fmt::Display for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Pages::Dense => write!(f, "dense NHD"),
            Pages::DenseHnd => write!(f, "dense HND"),
            Pages::Rows => write!(f, "dense NHD by cache_batch_idx"),
            Pages::Nhd(page) => write!(f, "pages of {page} NHD"),
            Pages::Hnd(page) => write!(f, "pages of {page} HND"),
            Pages::Interleaved(page) => write!(f, "interleaved pages of {page} NHD"),
        }
    }
}

impl std::fmt::Display for DecodeCase {
    /// Prints, for example, `f16 on e4m3, 7 sequences of up to 700 keys, pages of 16 NHD, queries 1, heads
    /// 16/2, head_dim 64, ..`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [heads_q, heads_k] = self.heads;
        write!(f, "{} on {}, {} sequences", self.dtype.name(), self.cache.name(), self.filled.len())?;
        write!(f, " of up to {} keys, {}, queries {}", self.max_k, self.pages, self.queries)?;
        write!(f, ", heads {heads_q}/{heads_k}, head_dim {}", self.head_dim)?;
        self.head_dim_v.map_or(Ok(()), |columns| write!(f, "/{columns}"))?;
        write!(f, "{}", if self.latent { " latent" } else { "" })?;
        write!(f, ", {}", self.mask)?;
        self.scale.map_or(Ok(()), |scale| write!(f, ", scale {scale}"))?;
        self.softcap.map_or(Ok(()), |softcap| write!(f, ", softcap {softcap}"))?;
        match self.splits {
            Splits::Exactly(splits) => write!(f, ", {splits} splits"),
            Splits::Chunk(keys) => write!(f, ", splits of {keys} keys"),
            _ => Ok(()),
        }?;
        write!(f, "{}", if self.alibi { ", alibi" } else { "" })?;
        write!(f, "{}", if self.sinks { ", sinks" } else { "" })?;
        self.bias.map_or(Ok(()), |bias| write!(f, ", bias {}", bias.name()))?;
        let groups = self.shared.as_ref().map_or(0, |shared| shared.groups.len());
        if groups > 0 {
            write!(f, ", {groups} groups with shared prefixes")?;
        }
        write!(f, "{}", if self.poisoned_scales { ", poisoned scales of hidden keys" } else { "" })?;
        write!(f, "{}", if self.counters { ", counters" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_described_in_words() {
        let case = DecodeCase::new([9, 700]);
        let text =
            "f16 on f16, 2 sequences of up to 700 keys, dense NHD, queries 1, heads 4/2, head_dim 64, full";
        assert_eq!(case.to_string(), format!("{text}, counters"));
        let case = DecodeCase { softcap: Some(50.0), splits: Splits::Exactly(3), counters: false, ..case };
        assert_eq!(case.to_string(), format!("{text}, softcap 50, 3 splits"));
        let case = DecodeCase { pages: Pages::Hnd(16), splits: Splits::CHUNK, softcap: None, ..case };
        let text = text.replace("dense NHD", "pages of 16 HND");
        assert_eq!(case.to_string(), format!("{text}, splits of 1024 keys"));
    }
}
