//! What is asked for: attention ([`AttentionRequest`]), new keys and values for a cache ([`Append`]), and
//! partial results that become one ([`Merge`]). Requests describe the caller's memory; nothing is checked
//! here: planning checks everything, once.
mod append;
mod cache;
mod merge;
mod scores;
mod scratch;
mod varlen;
mod view;

pub use append::Append;
pub use cache::{KvCache, KvPages, KvScale, PageView, Paged, Slots};
pub use merge::{Merge, State};
pub(crate) use scores::score_setters;
pub use scores::{AlibiSlopes, Alignment, Mask, Scores, Sinks};
pub use scratch::{Counters, Scratch, Splits, Workspace};
pub use varlen::{Index, VarlenKeys, VarlenQueries};
pub use view::{LseUnit, LseView, TensorView};

/// Longest sequence. Positions, shifts and windows of a padded tile are summed in 32 bits on the device.
pub const MAX_SEQLEN: usize = (1 << 30) - 256;
/// Largest head dim.
pub const MAX_HEAD_DIM: usize = 512;
/// Rows lie less than this many bytes apart: the distance of a tile's rows is computed in 32 bits on the
/// device.
pub const MAX_ROW_BYTES: u64 = 1 << 27;

/// How queries are laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Queries {
    /// `q` is `[batch, seqlen_q, heads_q, head_dim]`: as many queries for each sequence.
    #[default]
    Batched,
    /// `q` is `[1, rows of all sequences, heads_q, head_dim]`.
    Varlen(VarlenQueries),
}

/// Where keys and values are.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "requests are `Copy`, and a launch allocates nothing")]
pub enum KeysValues {
    /// `[batch, seqlen_k, heads_k, head_dim]` each: as many keys for each sequence.
    Tensors {
        /// Keys.
        k: TensorView,
        /// Values.
        v: TensorView,
    },
    /// `[1, rows of all sequences, heads_k, head_dim]` each. Queries are [varlen](Queries::Varlen), too.
    Varlen {
        /// Keys.
        k: TensorView,
        /// Values.
        v: TensorView,
        /// Where sequences begin.
        keys: VarlenKeys,
    },
    /// A KV cache, in pages or not, with the keys of the queries' own positions.
    Cache(KvCache),
}

impl KeysValues {
    /// K and V, where they are tensors.
    pub const fn tensors(&self) -> Option<[&TensorView; 2]> {
        match self {
            KeysValues::Tensors { k, v } | KeysValues::Varlen { k, v, .. } => Some([k, v]),
            KeysValues::Cache(_) => None,
        }
    }

    /// The same, to be changed.
    pub const fn tensors_mut(&mut self) -> Option<[&mut TensorView; 2]> {
        match self {
            KeysValues::Tensors { k, v } | KeysValues::Varlen { k, v, .. } => Some([k, v]),
            KeysValues::Cache(_) => None,
        }
    }
}

/// One attention: `o = softmax(mask(scores(q k^T))) v`, accumulated in f32.
///
/// | what you have | constructor |
/// |---|---|
/// | Q, K and V as tensors, sequences of equal lengths | [`AttentionRequest::dense`] |
/// | sequences of any lengths, one behind the other | [`AttentionRequest::varlen`] |
/// | a KV cache, for decoding and for (chunked) prefill | [`AttentionRequest::cached`] |
///
/// Setters are named as their fields.
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
pub struct AttentionRequest<'a> {
    /// Queries.
    pub q: TensorView,
    /// Output, of the queries' shape. Written whole, but for varlen rows that belong to no sequence; overlaps
    /// nothing else.
    pub o: TensorView,
    /// How queries are laid out.
    pub queries: Queries,
    /// Keys and values.
    pub kv: KeysValues,
    /// Which keys a query sees.
    pub mask: Mask,
    /// Where queries stand among keys. On a cache, and for kernels of few queries, always bottom-right.
    pub alignment: Alignment,
    /// What scores become before the softmax.
    pub scores: Scores,
    /// Where the log-sum-exp of each row goes.
    pub lse: Option<LseView>,
    /// Memory that the launch may use beside its tensors.
    pub scratch: Scratch,
    /// In how many splits the keys of a sequence on a cache are cut.
    pub splits: Splits,
    /// The kernel to run, by its name or by one of the lineage's, instead of the planner's choice.
    pub config: Option<&'a str>,
}

impl<'a> AttentionRequest<'a> {
    const fn new(q: TensorView, queries: Queries, kv: KeysValues, o: TensorView) -> Self {
        AttentionRequest {
            q,
            o,
            queries,
            kv,
            mask: Mask::Full,
            alignment: Alignment::BottomRight,
            scores: Scores::new(),
            lse: None,
            scratch: Scratch::None,
            splits: Splits::Auto,
            config: None,
        }
    }

    /// Attention of tensors `[batch, seqlen, heads, head_dim]`, without a mask: `q` and `o` with `seqlen_q`
    /// and `heads_q`, `k` and `v` with `seqlen_k` and `heads_k`, which divides `heads_q`.
    pub const fn dense(q: TensorView, k: TensorView, v: TensorView, o: TensorView) -> Self {
        Self::new(q, Queries::Batched, KeysValues::Tensors { k, v }, o)
    }

    /// Attention of sequences of any lengths, one behind the other (FlashAttention's `varlen`), without a
    /// mask.
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
        q: TensorView,
        k: TensorView,
        v: TensorView,
        o: TensorView,
        queries: VarlenQueries,
        keys: VarlenKeys,
    ) -> Self {
        Self::new(q, Queries::Varlen(queries), KeysValues::Varlen { k, v, keys }, o)
    }

    /// Attention on a KV cache, without a mask: decoding, chunks of prompts, whole prompts whose keys are in
    /// the cache already, and batches of all of these. `q` and `o` are `[batch, queries, heads_q, head_dim]`.
    /// Queries of different numbers a sequence are `.queries(Queries::Varlen(..))`. A sequence's last query
    /// stands at its last key. A sequence without a key gives 0, and `-inf` as its log-sum-exp.
    ///
    /// ```
    /// # fn main() -> Result<(), ferroflash::Error> {
    /// use ferroflash::request::{AttentionRequest, Index, KvCache, KvPages, PageView, Scratch, TensorView};
    /// use ferroflash::{Capabilities, DType, plan};
    /// # let [q, o, keys, values, table, lengths] = [1, 2, 3, 4, 5, 6].map(|n| n << 40);
    ///
    /// let (batch, columns) = (4, 512); // sequences of up to 512 pages of 16 keys
    /// let shape = [batch, 1, 32, 128]; // one query each of 32 heads
    /// let view = |address| TensorView::bshd(address, 4 * 32 * 128, DType::F16, shape);
    /// let pages = [1000, 16, 8, 128]; // pages, keys of a page, key heads, head_dim
    /// let pool = |address| PageView::nhd(address, 1000 * 16 * 8 * 128, DType::F16, pages);
    /// let (table, lengths) = (Index::new(table, 4 * 512), Index::new(lengths, 4));
    /// let cache = KvCache::paged(KvPages::new(pool(keys), pool(values)), table, columns, lengths);
    /// let request = AttentionRequest::cached(view(q), cache, view(o)).scratch(Scratch::Fastest);
    ///
    /// let h200 = Capabilities::profile("h200").expect("a known card"); // yours: `Attention::capabilities`
    /// let needs = plan(&request, h200)?.scratch_bytes();
    /// // What to allocate, once, and give to launches as `Scratch::Memory`; counters are filled with 0.
    /// assert_eq!(needs.workspace, 16 * 8 * 4 * 129 * 4);
    /// assert_eq!(needs.counters, 4 * 8 * 4);
    /// # Ok(())
    /// # }
    /// ```
    pub const fn cached(q: TensorView, cache: KvCache, o: TensorView) -> Self {
        Self::new(q, Queries::Batched, KeysValues::Cache(cache), o)
    }

    /// Sets how queries are laid out. Varlen queries on a cache are prefilled, in tiles of queries, however
    /// few they are: no sequence is cut by its keys, and there are no sinks and no e4m3 caches. A batch of
    /// single queries beside prompts is faster as two requests: one with the first `n` sequences as
    /// `[n, 1, heads, head_dim]`, which decodes, and one with the others, whose `cu_seqlens_q`, table and
    /// lengths begin with number `n`.
    pub const fn queries(mut self, queries: Queries) -> Self {
        self.queries = queries;
        self
    }

    /// Sets which keys a query sees.
    pub const fn mask(mut self, mask: Mask) -> Self {
        self.mask = mask;
        self
    }

    /// Sets where queries stand among keys where their numbers differ.
    pub const fn alignment(mut self, alignment: Alignment) -> Self {
        self.alignment = alignment;
        self
    }

    /// Sets what scores become before the softmax.
    pub const fn scores(mut self, scores: Scores) -> Self {
        self.scores = scores;
        self
    }

    score_setters!(scores);

    /// Also write the log-sum-exp of each row, sinks included.
    pub const fn lse(mut self, lse: LseView) -> Self {
        self.lse = Some(lse);
        self
    }

    /// Sets the memory that the launch may use beside its tensors, or asks for the plan that runs fastest
    /// with all the memory it wants.
    pub const fn scratch(mut self, scratch: Scratch) -> Self {
        self.scratch = scratch;
        self
    }

    /// Sets in how many splits the keys of a sequence on a cache are cut.
    pub const fn splits(mut self, splits: Splits) -> Self {
        self.splits = splits;
        self
    }

    /// Runs this kernel (a name of [`crate::kernels::entries`], of a kernel for caches, or of the lineage)
    /// instead of the planner's choice.
    pub const fn config(mut self, config: &'a str) -> Self {
        self.config = Some(config);
        self
    }

    /// The request with the planner's choice of a kernel: it borrows nothing.
    pub(crate) const fn unconfigured(&self) -> AttentionRequest<'static> {
        let AttentionRequest { q, o, queries, kv, mask, alignment, .. } = *self;
        let AttentionRequest { scores, lse, scratch, splits, .. } = *self;
        AttentionRequest {
            mask,
            alignment,
            scores,
            lse,
            scratch,
            splits,
            ..AttentionRequest::new(q, queries, kv, o)
        }
    }
}
