//! A problem of attention, as data: sequences, the memory layout of their tensors, and the contents.
use super::device_lengths::DeviceLengths;
use super::masks::{self, fit};
use super::place::{Layout, Sharing};
use super::sequences::Sequences;
use super::shared::Shared;
use ferroflash::DType;
use ferroflash::kernels::{AttnInfo, MaskKind};
use ferroflash::plan::Problem;
use ferroflash::request::{Alignment, Mask, Precision, RowOutputs, Splits};

mod integers;
mod stored;
mod words;

pub(super) use stored::twin;

/// Memory layout of keys and values: of tensors, or of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// No cache: keys and values are tensors. All sequences have equal numbers of queries and of keys, or the
    /// batch is varlen.
    Tensors(Layout),
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

/// The backward pass of a problem on tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backward {
    /// Whether the LSE has a gradient.
    pub d_lse: bool,
}

/// A problem and the seeds of its inputs, which are normal numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Element type of queries.
    pub dtype: DType,
    /// Element type of keys and values; `None` is the queries'. An e4m3 cache has scale 2 for keys and 1/2
    /// for values. In an int8 cache, every row has its own scales.
    pub kv_dtype: Option<DType>,
    /// Element type of the output; `None` is the queries'.
    pub o_dtype: Option<DType>,
    /// Number of keys of each sequence. The rows of a cache behind these keys are NaN.
    pub filled: Vec<usize>,
    /// Number of rows of K and V behind the keys of each sequence of varlen tensors; empty for none. The rows
    /// are NaN.
    pub unused: Vec<usize>,
    /// Seed of each sequence's queries, keys and values, on a cache.
    pub seeds: Vec<u64>,
    /// Upper bound of a sequence's keys.
    pub max_k: usize,
    /// Queries per sequence.
    pub queries: usize,
    /// Queries of each sequence of a varlen batch, or `None` if all sequences have `queries`.
    pub varlen_queries: Option<Vec<usize>>,
    /// Numbers of rows of Q and of K that follow the last sequence of a varlen batch. The rows are NaN.
    pub spare: [usize; 2],
    /// Numbers of query heads and of key heads.
    pub heads: [usize; 2],
    /// The number of heads that suffices in a simulator whose cards have two SMs for persistent blocks. The
    /// case has more, because a whole card needs them; the others show nothing there.
    pub enough_heads: Option<usize>,
    /// Columns of a head.
    pub head_dim: usize,
    /// Number of columns of values and of O; `None` for the number of the keys' columns.
    pub head_dim_v: Option<usize>,
    /// Whether values are the first columns of keys (MLA).
    pub latent: bool,
    /// Whether each query has a list of keys of a latent cache: sequences are queries, and lists have `max_k`
    /// entries.
    pub listed: bool,
    /// Memory layout of keys and values.
    pub pages: Pages,
    /// The keys that a query sees.
    pub mask: Mask,
    /// How queries align with keys.
    pub alignment: Alignment,
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
    /// Precision of the products.
    pub precision: Precision,
    /// Number of splits per sequence of a cache.
    pub splits: Splits,
    /// The outputs of rows that launches write.
    pub rows: RowOutputs<bool>,
    /// Whether launches write the largest score of each query head.
    pub head_maxima: bool,
    /// Whether the request has half as many sequences, with padded queries: each second sequence of the case
    /// has no key, and is the padding of the sequence before it.
    pub padded: bool,
    /// Whether the block that finishes a sequence last combines its splits. Otherwise a second kernel
    /// combines them.
    pub counters: bool,
    /// Whether the scales of keys that no query of their sequence sees are poisoned, in an int8 cache. All
    /// launches must then find the lengths of [`DeviceLengths::Filled`].
    pub poisoned_scales: bool,
    /// Keys per block, if some rows of tensors see one key with a huge score ([`super::Memory::with_peaks`]).
    pub peaks: Option<u32>,
    /// The scaled score of every query with every key of tensors, at most 0; `None` for random scores.
    pub score: Option<f32>,
    /// Seed of the tensors, or of a cache's page order and sinks.
    pub seed: u64,
    /// The backward pass, if launches compute gradients instead of O.
    pub backward: Option<Backward>,
    /// The prefixes that groups of sequences share, on pages.
    pub shared: Option<Shared>,
    /// The integers in device memory, one entry per launch of one plan; first [`DeviceLengths::Filled`].
    pub device_lengths: Vec<DeviceLengths>,
}

impl Case {
    /// Creates a case: f16, one query, 4 query heads and 2 key heads, head dim 64, dense cache, full mask,
    /// counters.
    pub fn new(filled: impl Into<Vec<usize>>) -> Self {
        let filled = filled.into();
        Case {
            dtype: DType::F16,
            kv_dtype: None,
            o_dtype: None,
            max_k: filled.iter().copied().max().unwrap_or(1).max(1),
            seeds: (1..=filled.len() as u64).collect(),
            filled,
            unused: vec![],
            queries: 1,
            varlen_queries: None,
            spare: [3; 2],
            heads: [4, 2],
            enough_heads: None,
            head_dim: 64,
            head_dim_v: None,
            latent: false,
            listed: false,
            pages: Pages::Dense,
            mask: Mask::Full,
            alignment: Alignment::BottomRight,
            scale: None,
            softcap: None,
            alibi: false,
            sinks: false,
            bias: None,
            precision: Precision::Inputs,
            splits: Splits::Auto,
            rows: RowOutputs::LSE,
            head_maxima: false,
            padded: false,
            counters: true,
            poisoned_scales: false,
            peaks: None,
            score: None,
            seed: 1,
            backward: None,
            shared: None,
            device_lengths: vec![DeviceLengths::Filled],
        }
    }

    /// Creates a case with the types and columns of an entry, on a cache.
    pub(super) fn on(entry: &AttnInfo, filled: impl Into<Vec<usize>>) -> Self {
        Case {
            dtype: entry.dtype,
            kv_dtype: Some(entry.kv_dtype),
            head_dim: entry.head_dim as usize,
            head_dim_v: (entry.head_dim != entry.head_dim_v).then_some(entry.head_dim_v as usize),
            precision: entry.precision(),
            ..Case::new(filled)
        }
    }

    /// Creates a case of tensors, whose sequences have equal lengths.
    pub fn tensors(p: Problem, layout: Layout, seed: u64) -> Self {
        Case {
            dtype: p.dtype,
            kv_dtype: Some(p.kv_dtype),
            o_dtype: Some(p.o_dtype),
            max_k: p.seqlen_k,
            queries: p.seqlen_q,
            heads: [p.heads_q, p.heads_k],
            head_dim: p.head_dim,
            head_dim_v: (p.head_dim_v != p.head_dim).then_some(p.head_dim_v),
            pages: Pages::Tensors(layout),
            mask: p.mask,
            alignment: p.alignment,
            scale: p.scale,
            softcap: p.softcap,
            alibi: p.alibi,
            sinks: p.sinks,
            bias: p.bias,
            precision: p.precision,
            seed,
            ..Case::new(vec![p.seqlen_k; p.batch])
        }
    }

    /// Makes the queries a varlen batch: `queries` has the number of queries of each sequence.
    #[must_use]
    pub fn varlen_queries(self, queries: impl Into<Vec<usize>>) -> Self {
        Case { varlen_queries: Some(queries.into()), ..self }
    }

    /// Makes the tensors a varlen batch of sequences with these numbers of queries, of keys, and of rows of K
    /// and V behind the keys.
    #[must_use]
    pub fn varlen(self, sequences: impl IntoIterator<Item = [usize; 3]>) -> Self {
        let all: Vec<_> = sequences.into_iter().collect();
        let of = |which: usize| all.iter().map(|lengths| lengths[which]).collect::<Vec<_>>();
        let unused = if all.iter().any(|[.., unused]| *unused > 0) { of(2) } else { vec![] };
        let max_k = all.iter().map(|[_, keys, unused]| keys + unused).max().unwrap_or(0).max(1);
        Case { filled: of(1), unused, max_k, ..self.varlen_queries(of(0)) }
    }

    /// Makes the problem a backward pass, with or without a gradient of the LSE.
    #[must_use]
    pub fn backward(self, d_lse: bool) -> Self {
        Case { backward: Some(Backward { d_lse }), ..self }
    }

    /// Changes the seed of all inputs.
    #[must_use]
    pub fn seeded(mut self, seed: u64) -> Self {
        self.seeds.iter_mut().for_each(|own| *own = own.wrapping_add(seed).wrapping_sub(1));
        Case { seed: self.seed.wrapping_add(seed).wrapping_sub(1), ..self }
    }

    /// Gives the case the scores of an entry, and a mask of the case's sizes. Kernels of [`MaskKind::Local`]
    /// also solve problems without slopes.
    #[must_use]
    pub fn of(self, entry: &AttnInfo) -> Self {
        let (sinks, alibi) = (self.sinks || entry.scores.sink, self.alibi || entry.scores.alibi);
        // See `Extras::random`.
        let is_odd =
            matches!(self.pages, Pages::Tensors(_)) && entry.has_maps() && entry.scores.bias.is_some();
        let seed = self.seed | u64::from(is_odd);
        let max_logits = self.rows.max_logits || entry.scores.maxima;
        let rows = RowOutputs { max_logits, ..self.rows };
        let case = Case { sinks, alibi, bias: entry.scores.bias, rows, seed, ..self };
        Case { mask: fit(case.problem()).mask, ..case }
    }

    /// Returns whether kernels with this mask solve the case. The kernels of masks with parameters do not
    /// solve a case whose mask equals a simpler mask.
    pub(super) fn suits(&self, mask: MaskKind) -> bool {
        matches!(mask, MaskKind::Full | MaskKind::Causal | MaskKind::Local)
            || self.problem().mask_kind() == mask
    }

    /// Returns the number of sequences.
    pub fn batch(&self) -> usize {
        self.filled.len()
    }

    /// Returns the number of queries of sequence `b`.
    pub(super) fn queries_of(&self, b: usize) -> usize {
        self.varlen_queries.as_ref().map_or(self.queries, |queries| queries[b])
    }

    /// Returns the entries of `cu_seqlens_q`: the first row of Q of each sequence, then the total number of
    /// rows.
    pub(super) fn starts(&self) -> Vec<usize> {
        starts((0..self.batch()).map(|b| self.queries_of(b)))
    }

    /// Returns batches and rows of Q and O. In a varlen batch, some rows belong to no sequence.
    pub(super) fn q_shape(&self) -> [usize; 2] {
        match self.varlen_queries {
            Some(_) => [1, self.starts()[self.batch()] + self.spare[0]],
            None => [self.batch(), self.queries],
        }
    }

    /// Returns the problem of sequence `b` on `keys` keys.
    pub(super) fn problem_of(&self, b: usize, keys: usize) -> Problem {
        self.problem().batch(1).seqlen_q(self.queries_of(b)).seqlen_k(keys)
    }

    /// Returns the problem of all sequences, with the maximum numbers of queries and keys per sequence.
    pub fn problem(&self) -> Problem {
        let queries = (0..self.batch()).map(|b| self.queries_of(b)).max().unwrap_or(1).max(1);
        let mut p = Problem::new(self.dtype, self.batch(), queries, self.heads[0], self.head_dim)
            .head_dim_v(self.columns())
            .seqlen_k(self.max_k)
            .heads_k(self.heads[1])
            .mask(self.mask)
            .alignment(self.alignment)
            .alibi(self.alibi)
            .sinks(self.sinks)
            .bias(self.bias)
            .o_dtype(self.o_dtype.unwrap_or(self.dtype));
        (p.scale, p.softcap, p.precision) = (self.scale, self.softcap, self.precision);
        // The reference reads the keys of a cache in the queries' type.
        if let Pages::Tensors(_) = self.pages {
            p.kv_dtype = self.kv_dtype();
        }
        let rows = |all: Sequences| [all.rows() + self.spare[0], all.key_rows() + self.spare[1]];
        p.varlen(self.sequences().map(rows))
    }

    /// Returns the element type of keys and values.
    pub fn kv_dtype(&self) -> DType {
        self.kv_dtype.unwrap_or(self.dtype)
    }

    /// Returns the number of columns of values and of O.
    pub(super) fn columns(&self) -> usize {
        self.head_dim_v.unwrap_or(self.head_dim)
    }

    /// Returns how keys and values of a cache share memory.
    pub(super) fn sharing(&self) -> Sharing {
        match (self.latent, self.pages) {
            (true, _) => Sharing::Latent,
            (false, Pages::Interleaved(_)) => Sharing::Interleaved,
            (false, _) => Sharing::Apart,
        }
    }

    /// Returns whether no query of sequence `b` sees key `key`.
    pub(super) fn hides(&self, b: usize, key: usize) -> bool {
        masks::hides(&self.problem_of(b, self.filled[b]), key)
    }

    /// Returns the number of keys per page, and a function that returns the number of pages of a sequence.
    pub(super) fn paging(&self) -> (usize, impl Fn(usize) -> usize) {
        let (whole, most) = (self.pages.are_whole(), self.max_k);
        let page = match self.pages {
            Pages::Nhd(page) | Pages::Hnd(page) | Pages::Interleaved(page) => page,
            Pages::Tensors(_) | Pages::Dense | Pages::DenseHnd | Pages::Rows => most,
        };
        (page, move |filled| if whole { 1 } else { filled.div_ceil(page) })
    }
}

/// Returns the first row of each sequence, and one past the last sequence's last row.
pub(super) fn starts(rows: impl Iterator<Item = usize>) -> Vec<usize> {
    let ends = rows.scan(0, |end, rows| {
        *end += rows;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}
