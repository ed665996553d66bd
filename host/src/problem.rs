//! A problem: sizes and scores of a request without its tensors. The problem determines the mask kind, the
//! window and the base-2 scale of the kernels.
mod empty;
mod keys;
mod meaning;
mod words;

pub use keys::CacheShape;

use crate::request::{
    Alignment, AttentionRequest, Invariance, KeysValues, KvPages, Mask, Prefix, Queries, Splits,
};
use crate::variant::AnyVariant;
use crate::{DType, MaskKind};
use spec::{Precision, ScoreKinds, Window};

/// Maximum number of rows per sequence and key head in decode. A thread block takes 16 rows at a time, and
/// several blocks read the same keys through the L2 cache. A prefill kernel reads keys once per query head
/// and splits no sequence. With more rows than this maximum, a prefill kernel has enough work per key.
pub const MAX_ROWS: usize = 64;

/// Declares the constructor, and each field once: its type, its value in [`Problem::new`], and its setter.
/// The setter of a field with the word `set` sets only the field; `own` setters are functions below.
macro_rules! problem {
    (
        $(#[$new_doc:meta])*
        new($($given:ident: $given_type:ty),*);
        $($(#[$doc:meta])* $setter:ident $field:ident: $type:ty = $value:expr;)*
    ) => {
        /// An [`AttentionRequest`] without its tensors: the input of planning and of
        /// [`crate::plan::supports`]. Create it with [`Problem::new`]; each setter has its field's name.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[non_exhaustive]
        pub struct Problem {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl Problem {
            $(#[$new_doc])*
            pub const fn new($($given: $given_type),*) -> Self {
                Problem { $($field: $value,)* }
            }

            $(problem!(@$setter $field: $type);)*
        }
    };
    (@set $field:ident: $type:ty) => {
        #[doc = concat!("Changes [`", stringify!($field), "`](#structfield.", stringify!($field), ").")]
        #[must_use]
        pub const fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    };
    (@own $field:ident: $type:ty) => {};
}
problem! {
    /// Creates a problem of full attention with equal numbers of query and key heads, and of queries and
    /// keys.
    new(dtype: DType, batch: usize, seqlen: usize, heads: usize, head_dim: usize);

    /// Element type of Q.
    own dtype: DType = dtype;
    /// Element type of K and V.
    set kv_dtype: DType = dtype;
    /// Element type of O.
    set o_dtype: DType = dtype;
    /// Element type of gradients: of dO, dQ, dK and dV.
    set grad_dtype: DType = dtype;
    /// Sequences.
    set batch: usize = batch;
    /// Queries per sequence.
    set seqlen_q: usize = seqlen;
    /// Keys per sequence.
    set seqlen_k: usize = seqlen;
    /// Query heads.
    set heads_q: usize = heads;
    /// Key and value heads; divides `heads_q` (grouped-query and multi-query attention).
    set heads_k: usize = heads;
    /// Columns of a head of Q and K: a multiple of 8, at most 512.
    own head_dim: usize = head_dim;
    /// Columns of a head of V and O: a multiple of 8, at most 512. MLA after up-projection has 192 columns of
    /// K and 128 columns of V.
    set head_dim_v: usize = head_dim;
    /// The keys that a query sees. Addresses in the mask are ignored.
    set mask: Mask = Mask::Full;
    /// How queries align with keys.
    set alignment: Alignment = Alignment::BottomRight;
    /// Factor of the scores; `None` is `1 / sqrt(head_dim)`.
    own scale: Option<f32> = None;
    /// Scores become `softcap * tanh(score / softcap)` before the mask; `None` is off.
    own softcap: Option<f32> = None;
    /// Whether the request has [`AlibiSlopes`](crate::request::AlibiSlopes).
    set alibi: bool = false;
    /// Whether the request has [`Sinks`](crate::request::Sinks).
    set sinks: bool = false;
    /// Element type of the [`Bias`](crate::request::Bias), if the request has one.
    set bias: Option<DType> = None;
    /// The numbers of rows of Q and of K, each for all sequences together, if queries are varlen. `seqlen_q`
    /// and `seqlen_k` are then the maxima per sequence.
    set varlen: Option<[usize; 2]> = None;
    /// Properties of the KV cache that contains keys and values, if there is one. `seqlen_k` is then the
    /// maximum per sequence.
    set cache: Option<CacheShape> = None;
    /// The number of splits per sequence.
    set splits: Splits = Splits::Auto;
    /// The precision of the products.
    set precision: Precision = Precision::Inputs;
    /// This limits what the bits of a sequence's result depend on.
    set invariance: Invariance = Invariance::None;
    /// The caller's own mask and scores, if the request has them.
    set variant: Option<AnyVariant> = None;
    /// Queries and keys of a block of the variant's [`BlockMask`](spec::BlockMask), if the variant has one.
    /// Only kernels with this tile take its lists.
    set block_tile: Option<[u32; 2]> = None;
}

impl Problem {
    /// Changes [`dtype`](#structfield.dtype), and the element types of all other tensors to the same type.
    #[must_use]
    pub const fn dtype(mut self, dtype: DType) -> Self {
        (self.dtype, self.kv_dtype, self.o_dtype, self.grad_dtype) = (dtype, dtype, dtype, dtype);
        self
    }

    /// Changes [`head_dim`](#structfield.head_dim), and [`head_dim_v`](#structfield.head_dim_v) to the same
    /// number.
    #[must_use]
    pub const fn head_dim(mut self, head_dim: usize) -> Self {
        (self.head_dim, self.head_dim_v) = (head_dim, head_dim);
        self
    }

    /// Changes [`scale`](#structfield.scale): a factor above 0.
    #[must_use]
    pub const fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Changes [`softcap`](#structfield.softcap). 0 turns it off, as in FlashAttention.
    #[must_use]
    pub const fn softcap(mut self, softcap: f32) -> Self {
        self.softcap = if softcap == 0.0 { None } else { Some(softcap) };
        self
    }

    /// Returns the shapes of Q, K, V and O.
    pub fn shapes(&self) -> [[usize; 4]; 4] {
        let Problem { batch, heads_q, heads_k, head_dim, head_dim_v, .. } = *self;
        let (batches, [rows_q, rows_k]) = match self.varlen {
            None => (batch, [self.seqlen_q, self.seqlen_k]),
            Some(rows) => (1, rows),
        };
        let (queries, keys) = ([batches, rows_q, heads_q], [batches, rows_k, heads_k]);
        let of = |[batches, rows, heads]: [usize; 3], columns| [batches, rows, heads, columns];
        [of(queries, head_dim), of(keys, head_dim), of(keys, head_dim_v), of(queries, head_dim_v)]
    }

    /// Columns of Q and K, and of V and O.
    pub const fn columns(&self) -> [usize; 2] {
        [self.head_dim, self.head_dim_v]
    }

    /// The columns in words: `head_dim 64`, or `head_dim 192/128` if V has another number of columns.
    pub(crate) fn named_columns(&self) -> String {
        match self.columns() {
            [k, v] if k == v => format!("head_dim {k}"),
            [k, v] => format!("head_dim {k}/{v}"),
        }
    }

    /// Returns the factor of the scores; by default `1 / sqrt(head_dim)`.
    pub fn softmax_scale(&self) -> f32 {
        self.scale.unwrap_or_else(|| 1.0 / (self.head_dim as f32).sqrt())
    }

    /// Returns the mask kind of the cheapest kernel that solves the problem.
    pub fn mask_kind(&self) -> MaskKind {
        if let Some(variant) = self.variant {
            return variant.mask();
        }
        match (self.cheapest_mask(), self.sides()) {
            (Mask::Prefix(_), _) => MaskKind::Prefix,
            (Mask::Chunked { .. }, _) => MaskKind::Chunked,
            (Mask::Bits(_), _) => MaskKind::Bits,
            _ if self.softcap.is_some() || self.alibi => MaskKind::Local,
            (_, (Window::UNBOUNDED, Window::UNBOUNDED)) => MaskKind::Full,
            (_, (Window::UNBOUNDED, 0)) => MaskKind::Causal,
            _ => MaskKind::Local,
        }
    }

    /// Returns the kinds of score transformations that a kernel must support.
    pub fn score_kinds(&self) -> ScoreKinds {
        let asked = ScoreKinds { sink: self.sinks, bias: self.bias, ..ScoreKinds::NONE };
        self.variant.map_or(asked, |variant| asked.and(variant.scores()))
    }

    /// Returns the simplest mask under which each query sees the keys that it sees under the problem's mask,
    /// for these lengths. Batch-invariant problems have the same mask for all lengths.
    fn cheapest_mask(&self) -> Mask {
        let of_all = |length: usize| if self.invariance.is_promised() { usize::MAX } else { length };
        match self.mask {
            mask if self.variant.is_some() => mask,
            Mask::Prefix(Prefix::All(0)) => Mask::Causal,
            Mask::Prefix(Prefix::All(keys)) if keys as usize >= of_all(self.seqlen_k) => Mask::Full,
            Mask::Chunked { chunk } if chunk as usize >= of_all(self.seqlen_q.max(self.seqlen_k)) => {
                Mask::Causal
            }
            mask => mask,
        }
    }

    /// Returns the kernel's window parameters, if keys are tensors.
    pub(crate) fn window(&self) -> Window {
        let (left, right) = self.sides();
        let top_left = self.alignment == Alignment::TopLeft;
        // The subtraction cannot overflow, because validation bounds the lengths.
        let shift = if top_left { 0 } else { (self.seqlen_k as i32).wrapping_sub(self.seqlen_q as i32) };
        Window { shift, left, right }
    }

    /// Returns whether the alignment is bottom-right, or equal to it for this mask and these lengths.
    pub(crate) fn is_bottom_right(&self) -> bool {
        let sees_all = self.is_anywhere(self.sides());
        self.alignment == Alignment::BottomRight || self.seqlen_q == self.seqlen_k || sees_all
    }

    /// Returns true if each query sees every key with these sides, and there are no slopes. A query's
    /// position then does not matter.
    fn is_anywhere(&self, sides: (i32, i32)) -> bool {
        sides == (Window::UNBOUNDED, Window::UNBOUNDED) && !self.alibi && self.variant.is_none()
    }

    /// Returns the window parameters of the mask's kernels: numbers of visible keys before and after a
    /// query's position. Kernels of masks with other parameters only need to know whether a row's keys end at
    /// the query's position.
    fn sides(&self) -> (i32, i32) {
        const UNBOUNDED: i32 = Window::UNBOUNDED;
        let clamp = |side: Option<u32>| side.map_or(UNBOUNDED, |n| n.min(UNBOUNDED as u32) as i32);
        let (left, right) = match self.cheapest_mask() {
            Mask::Prefix(_) | Mask::Chunked { .. } => (None, Some(0)),
            mask => mask.sides(),
        };
        (clamp(left), clamp(right))
    }

    /// Returns whether the problem has slopes, a causal mask and no softcap.
    pub(crate) fn has_causal_slopes(&self) -> bool {
        self.alibi && self.softcap.is_none() && self.sides() == (Window::UNBOUNDED, 0)
    }

    /// Returns the kernel's two scale parameters. Without softcap: the scale times log2(e), and 0. With
    /// softcap: the softcap times log2(e), and `scale / softcap`.
    pub(crate) fn base_two(&self) -> (f32, f32) {
        match self.softcap {
            None => (self.softmax_scale() * std::f32::consts::LOG2_E, 0.0),
            Some(softcap) => (softcap * std::f32::consts::LOG2_E, self.softmax_scale() / softcap),
        }
    }

    /// Returns the number of rows of one sequence and key head: queries x query heads per key head (packed
    /// GQA).
    pub fn rows(&self) -> usize {
        (self.heads_q / self.heads_k).saturating_mul(self.seqlen_q)
    }

    /// Returns the number of work tiles with `tile_m` queries, over all heads.
    pub(crate) fn tiles(&self, tile_m: u32) -> u64 {
        self.seqlen_q.div_ceil(tile_m as usize) as u64 * (self.batch * self.heads_q) as u64
    }

    /// Returns whether queries are varlen and each sequence has one query. Row `b` of Q then is the query of
    /// sequence `b`.
    pub(crate) fn has_single_queries(&self) -> bool {
        self.seqlen_q == 1 && self.varlen.is_some_and(|[rows, _]| rows == self.batch)
    }

    /// Returns the splits of a sequence in decode kernels. Without a number from the caller, splits of a
    /// batch-invariant problem have a fixed number of keys.
    pub(crate) const fn decode_splits(&self) -> Splits {
        /// Keys per split that suit most KV caches.
        const INVARIANT: Splits = Splits::Keys(1024);
        match self.splits {
            Splits::Auto if self.invariance.is_promised() => INVARIANT,
            splits => splits,
        }
    }

    /// Returns the maximum number of queries and the maximum number of keys of all sequences together, as far
    /// as the host knows them.
    pub(crate) fn totals(&self) -> [usize; 2] {
        let [queries, keys] = self.varlen.unwrap_or([self.batch * self.seqlen_q, 0]);
        match self.cache {
            None => [queries, keys],
            Some(cache) => {
                [queries, cache.total_k.unwrap_or_else(|| self.batch.saturating_mul(self.seqlen_k))]
            }
        }
    }
}

impl AttentionRequest<'_> {
    /// Returns the problem of these tensors, unchecked. Sizes come from Q and K.
    pub fn problem(&self) -> Problem {
        let [batches, rows_q, heads_q, head_dim] = self.q.shape;
        let (k, v, seqlen_k, rows_k, cache) = match &self.kv {
            KeysValues::Tensors { k, v } => (k, v, k.shape[1], k.shape[1], None),
            KeysValues::Varlen { k, v, keys } => (k, v, keys.max_seqlen_k, k.shape[1], None),
            KeysValues::Cache(cache) => {
                let KvPages { keys, values, .. } = &cache.pages;
                (keys, values, cache.max_k, cache.max_k, Some(CacheShape::new(cache)))
            }
            KeysValues::Listed(listed) => {
                let KvPages { keys, values, .. } = &listed.pages;
                (keys, values, listed.topk, listed.topk, Some(CacheShape::listed(&listed.pages)))
            }
        };
        let (batch, seqlen_q, varlen) = match self.queries {
            Queries::Batched => (batches, rows_q, None),
            Queries::Varlen(queries) => (queries.batch, queries.max_seqlen_q, Some([rows_q, rows_k])),
        };
        Problem {
            dtype: self.q.dtype,
            kv_dtype: k.dtype,
            o_dtype: self.o.dtype,
            grad_dtype: self.q.dtype,
            batch,
            seqlen_q,
            seqlen_k,
            heads_q,
            heads_k: k.shape[2],
            head_dim,
            head_dim_v: v.shape[3],
            mask: self.bounds().anywhere(),
            alignment: self.alignment,
            scale: self.scores.scale,
            softcap: self.scores.softcap,
            alibi: self.scores.alibi.is_some(),
            sinks: self.scores.sinks.is_some(),
            bias: self.scores.bias.map(|bias| bias.dtype),
            varlen,
            cache,
            splits: self.splits,
            precision: match self.precision {
                // There are no other products of such tensors.
                Precision::Inputs if self.q.dtype == DType::E4m3 && cache.is_none() => Precision::Fp8,
                precision => precision,
            },
            invariance: self.invariance,
            variant: self.variant.map(|with| with.variant()),
            block_tile: self.variant.and_then(|with| with.block_mask().map(|mask| mask.tile)),
        }
    }

    /// Returns the request's mask. The mask of a causal variant is causal, although the request does not say
    /// so.
    fn bounds(&self) -> Mask {
        let kind = self.variant.map(|with| with.variant().mask());
        if (kind, self.mask) == (Some(MaskKind::Causal), Mask::Full) { Mask::Causal } else { self.mask }
    }
}
