//! Requests describe the caller's memory: [`AttentionRequest`] asks for attention, [`AttentionBackward`]
//! for its gradients, [`Append`] for an append to a KV cache, and [`Merge`] for a merge of partial states.
//! A request checks nothing; planning validates the request once.
mod anywhere;
mod append;
mod backward;
mod cache;
mod descales;
mod invariance;
mod listed;
mod mask;
mod memory;
mod merge;
mod options;
mod places;
mod resolve;
mod rotary;
mod rows;
mod scores;
mod scratch;
mod shared_prefixes;
mod sum;
mod varlen;
mod view;

pub use append::Append;
pub use backward::{AttentionBackward, TableGradient};
pub use cache::{KvCache, KvPages, KvScale, Paged, Slots, TokenScales};
pub use descales::Descales;
pub use invariance::Invariance;
pub use listed::ListedKeys;
pub use mask::{Alignment, Mask, MaskBits, Prefix};
pub use memory::Memory;
pub(crate) use memory::{Resolve, ResolveVariant};
pub use merge::{Merge, State};
pub(crate) use places::{PARTS, Parts, Places};
pub use rotary::{Positions, Rotary, RotaryQueries, RotaryStyle};
pub use rows::RowOutputs;
pub(crate) use scores::score_setters;
pub use scores::{AlibiSlopes, Bias, Scores, Sinks};
pub use scratch::{Region, Scratch, Splits};
pub use shared_prefixes::{Groups, Level, SharedPrefixes};
pub use sum::Sum;
pub use varlen::{Index, VarlenKeys, VarlenQueries};
pub use view::{LseUnit, LseView, TensorView};

use crate::variant::Variant;
use spec::MaskMarker;
pub use spec::Precision;

/// Longest sequence. Positions, shifts and windows of a padded tile are summed in 32 bits on the device.
pub const MAX_SEQLEN: usize = (1 << 30) - 256;
/// Largest factor of scores: the scale of scores times the scales of Q and K of eight bits. Kernels subtract
/// a row's largest score, rounded to 24 bits, from its scores. With larger factors, usual scores exceed 2^30,
/// and what the rounding leaves makes probabilities infinite, and O NaN.
pub const MAX_SCALE: f32 = (1 << 20) as f32;
/// Largest head dim.
pub const MAX_HEAD_DIM: usize = 512;
/// Maximum columns of a latent cache's keys, and of its values.
pub const MAX_LATENT_DIMS: [usize; 2] = [576, 512];
/// Two adjacent rows must be less than this number of bytes apart: the device computes the distance of a
/// tile's rows in 32 bits.
pub const MAX_ROW_BYTES: u64 = 1 << 27;

/// The layout of the queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Queries<M = u64> {
    /// `q` is `[batch, seqlen_q, heads_q, head_dim]`: every sequence has `seqlen_q` queries.
    #[default]
    Batched,
    /// `q` is `[1, rows of all sequences, heads_q, head_dim]`.
    Varlen(VarlenQueries<M>),
}

/// The layout of keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum KeysValues<M = u64> {
    /// `[batch, seqlen_k, heads_k, head_dim]` each: every sequence has `seqlen_k` keys.
    Tensors {
        /// Keys.
        k: TensorView<M>,
        /// Values.
        v: TensorView<M>,
    },
    /// `[1, rows of all sequences, heads_k, head_dim]` each. The queries are [varlen](Queries::Varlen) too.
    Varlen {
        /// Keys.
        k: TensorView<M>,
        /// Values.
        v: TensorView<M>,
        /// The sequences' offsets and lengths.
        keys: VarlenKeys<M>,
    },
    /// A KV cache, paged or dense. The cache already contains the keys of the queries' own positions.
    Cache(KvCache<M>),
    /// Lists of keys of a latent cache, one for each query. `q` is `[queries, 1, heads_q, head_dim]`.
    Listed(ListedKeys<M>),
}

impl<M: Copy> KeysValues<M> {
    /// Returns K and V, if they are tensors.
    pub const fn tensors(&self) -> Option<[&TensorView<M>; 2]> {
        match self {
            KeysValues::Tensors { k, v } | KeysValues::Varlen { k, v, .. } => Some([k, v]),
            KeysValues::Cache(_) | KeysValues::Listed(_) => None,
        }
    }

    /// Returns mutable K and V, if they are tensors.
    pub const fn tensors_mut(&mut self) -> Option<[&mut TensorView<M>; 2]> {
        match self {
            KeysValues::Tensors { k, v } | KeysValues::Varlen { k, v, .. } => Some([k, v]),
            KeysValues::Cache(_) | KeysValues::Listed(_) => None,
        }
    }
}

/// One attention: `o = softmax(mask(scores(q k^T))) v`, accumulated in f32.
///
/// | what you have | constructor |
/// |---|---|
/// | Q, K and V as tensors, sequences of equal lengths | [`AttentionRequest::dense`] |
/// | sequences of any lengths in one tensor (varlen) | [`AttentionRequest::varlen`] |
/// | a KV cache, for decode and (chunked) prefill | [`AttentionRequest::cached`] |
/// | a latent cache (MLA decode) | [`AttentionRequest::cached`] on [`KvPages::latent`] |
/// | a latent cache, and a list of keys for each query (sparse MLA) | [`AttentionRequest::sparse`] |
///
/// The setter of a field has the field's name.
///
/// ```
/// # fn main() -> Result<(), ferroflash::Error> {
/// use ferroflash::request::{AttentionRequest, Mask, TensorView};
/// use ferroflash::{Capabilities, DType, plan};
/// # let [q, k, v, o] = [1, 2, 3, 4].map(|n| n << 40);
///
/// let shape = [2, 1024, 16, 128]; // batch, seqlen, heads, head_dim
/// let view = |address| TensorView::bshd(address, 2 * 1024 * 16 * 128, DType::F16, shape);
/// let request = AttentionRequest::dense(view(q), view(k), view(v), view(o)).mask(Mask::Causal);
///
/// let h200 = Capabilities::profile("h200").expect("a known card"); // yours: `Attention::capabilities`
/// let plan = plan(&request, h200)?;
/// assert_eq!(plan.contract().symbol, "hopper_f16_d128_causal_128x128");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
#[must_use = "a description of a launch does nothing by itself; plan and launch it"]
pub struct AttentionRequest<'a, R: Memory = u64, W = R> {
    /// Queries.
    pub q: TensorView<R>,
    /// Output, with the queries' shape; on a latent cache with the values' number of columns. The kernel
    /// writes all rows of O, except varlen rows that belong to no sequence. O must not overlap another
    /// tensor.
    ///
    /// Its dtype is that of Q. O of f32 is a partial [`State`] of dense tensors, for a [`Merge`]: it is
    /// `[batch][heads][seqlen][head_dim]` ([`TensorView::bhsd`]), with a contiguous LSE. Kernels leave states
    /// of full and causal masks and windows, with softcap or slopes, without biases and sinks, of head dims
    /// 64 and 128.
    pub o: TensorView<W>,
    /// The layout of the queries.
    pub queries: Queries<R>,
    /// Keys and values.
    pub kv: KeysValues<R>,
    /// The keys that a query sees.
    pub mask: Mask<R>,
    /// How queries align with keys. KV caches and decode kernels always align bottom-right.
    pub alignment: Alignment,
    /// The transformations of scores before the softmax.
    pub scores: Scores<R>,
    /// [`RowOutputs::lse`].
    pub lse: Option<LseView<W>>,
    /// [`RowOutputs::max_logits`].
    pub max_logits: Option<LseView<W>>,
    /// [`RowOutputs::entropy`].
    pub entropy: Option<LseView<W>>,
    /// Output: the largest score of each query head over all rows of the batch (QK-clip), one f32 per head.
    pub max_logits_head: Option<Sinks<W>>,
    /// Scratch memory that the launch may use.
    pub scratch: Scratch,
    /// The number of splits per sequence on a KV cache.
    pub splits: Splits,
    /// This limits what the bits of a sequence's result depend on.
    pub invariance: Invariance,
    /// The prefixes that groups of sequences share on a paged KV cache.
    pub shared_prefixes: Option<SharedPrefixes<R>>,
    /// Your own mask and scores, in kernels that you compile.
    pub variant: Option<R::Variant>,
    /// The precision of the products.
    pub precision: Precision,
    /// The scales of Q, K and V of e4m3.
    pub descales: Descales<R>,
    /// The kernel to run, by its symbol or by a name of the lineage. `None` lets the planner select.
    pub config: Option<&'a str>,
}

impl<'a, R: Memory, W> AttentionRequest<'a, R, W> {
    /// Creates a request for attention without a mask, on queries, keys and values of any layout.
    /// [`dense`](Self::dense), [`varlen`](Self::varlen) and [`cached`](Self::cached) are shorter.
    pub const fn new(q: TensorView<R>, queries: Queries<R>, kv: KeysValues<R>, o: TensorView<W>) -> Self {
        AttentionRequest {
            q,
            o,
            queries,
            kv,
            mask: Mask::Full,
            alignment: Alignment::BottomRight,
            scores: Scores::new(),
            lse: None,
            max_logits: None,
            entropy: None,
            max_logits_head: None,
            scratch: Scratch::None,
            splits: Splits::Auto,
            invariance: Invariance::None,
            shared_prefixes: None,
            variant: None,
            precision: Precision::Inputs,
            descales: Descales::ONE,
            config: None,
        }
    }

    /// Creates a request for attention on tensors `[batch, seqlen, heads, head_dim]`, without a mask. `q` and
    /// `o` have `seqlen_q` and `heads_q`. `k` and `v` have `seqlen_k` and `heads_k`. `heads_k` divides
    /// `heads_q`.
    pub const fn dense(q: TensorView<R>, k: TensorView<R>, v: TensorView<R>, o: TensorView<W>) -> Self {
        Self::new(q, Queries::Batched, KeysValues::Tensors { k, v }, o)
    }

    /// Computes attention on varlen sequences (FlashAttention's `varlen`), without a mask.
    ///
    /// ```
    /// # fn main() -> Result<(), ferroflash::Error> {
    /// use ferroflash::request::{AttentionRequest, Index, Mask, TensorView, VarlenKeys, VarlenQueries};
    /// use ferroflash::{Capabilities, DType, plan};
    /// # let [q, k, v, o, starts] = [1, 2, 3, 4, 5].map(|n| n << 40);
    ///
    /// // 8 sequences, 16384 tokens together, the longest of 4096.
    /// let (batch, tokens, longest) = (8, 16384, 4096);
    /// let view = |address| TensorView::bshd(address, 16384 * 32 * 128, DType::Bf16, [1, tokens, 32, 128]);
    /// let starts = Index::new(starts, batch as u64 + 1);
    /// let queries = VarlenQueries::new(batch, starts, longest);
    /// let keys = VarlenKeys::new(starts, longest);
    /// let request = AttentionRequest::varlen(view(q), view(k), view(v), view(o), queries, keys);
    ///
    /// let h200 = Capabilities::profile("h200").expect("a known card"); // yours: `Attention::capabilities`
    /// let plan = plan(&request.mask(Mask::Causal), h200)?;
    /// assert_eq!(plan.contract().symbol, "hopper_packed_bf16_d128_causal_128x128");
    /// # Ok(())
    /// # }
    /// ```
    pub const fn varlen(
        q: TensorView<R>,
        k: TensorView<R>,
        v: TensorView<R>,
        o: TensorView<W>,
        queries: VarlenQueries<R>,
        keys: VarlenKeys<R>,
    ) -> Self {
        Self::new(q, Queries::Varlen(queries), KeysValues::Varlen { k, v, keys }, o)
    }

    /// Computes attention on a KV cache, without a mask: decode, chunked prefill, prefill of prompts whose
    /// keys are already in the KV cache, and batches of all of these. `q` and `o` are `[batch, queries,
    /// heads_q, head_dim]`. For different query counts per sequence, call `.queries(Queries::Varlen(..))`. A
    /// sequence's last query aligns with its last key. A sequence without keys gives O = 0 and LSE = `-inf`.
    ///
    /// ```
    /// # fn main() -> Result<(), ferroflash::Error> {
    /// use ferroflash::request::{AttentionRequest, Index, KvCache, KvPages,  Scratch, TensorView};
    /// use ferroflash::{Capabilities, DType, plan};
    /// # let [q, o, keys, values, table, lengths] = [1, 2, 3, 4, 5, 6].map(|n| n << 40);
    ///
    /// let (batch, columns) = (4, 512); // sequences of up to 512 pages of 16 keys
    /// let shape = [batch, 1, 32, 128]; // one query each of 32 heads
    /// let view = |address| TensorView::bshd(address, 4 * 32 * 128, DType::F16, shape);
    /// let pages = [1000, 16, 8, 128]; // pages, keys of a page, key heads, head_dim
    /// let pool = |address| TensorView::bshd(address, 1000 * 16 * 8 * 128, DType::F16, pages);
    /// let (table, lengths) = (Index::new(table, 4 * 512), Index::new(lengths, 4));
    /// let cache = KvCache::paged(KvPages::new(pool(keys), pool(values)), table, columns, lengths);
    /// let request = AttentionRequest::cached(view(q), cache, view(o)).scratch(Scratch::Fastest);
    ///
    /// let h200 = Capabilities::profile("h200").expect("a known card"); // yours: `Attention::capabilities`
    /// let needs = plan(&request, h200)?.scratch_bytes();
    /// // What to allocate, once; `needs.at(..)` is this memory. Counters are filled with 0.
    /// assert_eq!(needs.workspace, 16 * 8 * 4 * 129 * 4);
    /// assert_eq!(needs.counters, 4 * 8 * 4);
    /// # Ok(())
    /// # }
    /// ```
    pub const fn cached(q: TensorView<R>, cache: KvCache<R>, o: TensorView<W>) -> Self {
        Self::new(q, Queries::Batched, KeysValues::Cache(cache), o)
    }

    /// Sets the layout of the queries.
    /// Varlen queries on a KV cache may be a mixed batch: one launch runs a decode kernel on the sequences of
    /// few queries and a prefill kernel on the others. docs/limits.md, "Mixed batches", lists the conditions.
    /// If the conditions do not hold, prefill kernels take all sequences, without split-KV. Two requests are
    /// then faster. The first request has the first `n` sequences, which have one query each: its `q` and `o`
    /// have the shape `[n, 1, heads, head_dim]`, and decode kernels run it. The second request has the other
    /// sequences, as varlen. Its `cu_seqlens_q`, block table and lengths begin at index `n`.
    pub const fn queries(mut self, queries: Queries<R>) -> Self {
        self.queries = queries;
        self
    }

    /// Sets the keys that a query sees.
    pub const fn mask(mut self, mask: Mask<R>) -> Self {
        self.mask = mask;
        self
    }

    /// Sets the transformations of scores before the softmax.
    pub const fn scores(mut self, scores: Scores<R>) -> Self {
        self.scores = scores;
        self
    }

    score_setters!(R scores);

    /// Sets the prefixes that groups of sequences share on a paged KV cache. Where that pays, the launch
    /// reads each prefix once for all queries of its group.
    ///
    /// ```
    /// # fn main() -> Result<(), ferroflash::Error> {
    /// use ferroflash::request::{
    ///     AttentionRequest, Index, KvCache, KvPages, Scratch, SharedPrefixes, TensorView,
    /// };
    /// use ferroflash::{Capabilities, DType, plan};
    /// # let [q, o, keys, values, table, lengths, rest] = [1, 2, 3, 4, 5, 6, 7].map(|n| n << 40);
    ///
    /// let (batch, columns) = (128, 256); // sequences of up to 256 pages of 16 keys
    /// let view = |address| TensorView::bshd(address, 128 * 32 * 128, DType::F16, [batch, 1, 32, 128]);
    /// let pool = |address| TensorView::bshd(address, 9000 * 16 * 8 * 128, DType::F16, [9000, 16, 8, 128]);
    /// let (table, lengths) = (Index::new(table, 128 * 256), Index::new(lengths, 128));
    /// let cache = KvCache::paged(KvPages::new(pool(keys), pool(values)), table, columns, lengths);
    /// let request = AttentionRequest::cached(view(q), cache, view(o)).scratch(Scratch::Fastest);
    ///
    /// // All sequences begin with the same 128 pages. `rest` has the lengths minus 2048.
    /// let request = request.shared_prefixes(SharedPrefixes::one(128, Index::new(rest, 128)));
    /// let h200 = Capabilities::profile("h200").expect("a known card"); // yours: `Attention::capabilities`
    /// assert!(plan(&request, h200)?.reason().contains("share prefixes"));
    /// # Ok(())
    /// # }
    /// ```
    pub const fn shared_prefixes(mut self, prefixes: SharedPrefixes<R>) -> Self {
        self.shared_prefixes = Some(prefixes);
        self
    }

    /// Sets the kernel to run instead of the planner's choice: a symbol of [`crate::kernels::entries`], of a
    /// kernel for KV caches, or of the request's variant, or a name of the lineage.
    pub const fn config(mut self, config: &'a str) -> Self {
        self.config = Some(config);
        self
    }
}

impl AttentionRequest<'_> {
    /// Sets the variant to run, with these parameters. If the variant's mask is
    /// [`Local`](crate::configuration::Local) with other scores, the request's mask, softcap and slopes apply
    /// too. Leave them unset for other variants. The alignment always applies.
    pub fn variant<M: MaskMarker>(mut self, variant: &'static Variant<M>, params: M::Params) -> Self {
        self.variant = Some(variant.with(params));
        self
    }
}
