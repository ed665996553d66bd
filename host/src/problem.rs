//! Sizes and scores of an attention without its tensors, and what kernels make of them: a mask kind, a window,
//! numbers in base 2.
use crate::request::{Alignment, AttentionRequest, KeysValues, KvCache, Mask, Paged, Queries, Splits};
use crate::{DType, MaskKind};
use spec::Window;

/// Most rows of a sequence and key head. A thread block takes those that its entry has, and several of the same
/// keys find these in the L2 cache, which gives them 16 rows at a time. A kernel with work tiles reads them for
/// each query head, and cuts no sequence: with more rows than these it has enough to do for each key.
pub(crate) const MAX_ROWS: usize = 64;

/// An [`AttentionRequest`] without its tensors: what planning and [`crate::plan::supports`] look at. Begins with
/// [`Problem::new`]; each field is changed by the function of its name.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Problem {
    /// Element type of Q and O, and of K and V where these are tensors.
    pub dtype: DType,
    /// Sequences.
    pub batch: usize,
    /// Queries of a sequence.
    pub seqlen_q: usize,
    /// Keys of a sequence.
    pub seqlen_k: usize,
    /// Query heads.
    pub heads_q: usize,
    /// Key and value heads; divides `heads_q` (grouped-query and multi-query attention).
    pub heads_k: usize,
    /// Columns of a head: a multiple of 8, at most 512.
    pub head_dim: usize,
    /// Which keys a query sees.
    pub mask: Mask,
    /// Where queries stand among keys.
    pub alignment: Alignment,
    /// Factor of the scores; `None` is `1 / sqrt(head_dim)`.
    pub scale: Option<f32>,
    /// Scores become `softcap * tanh(score / softcap)` before the mask; `None` leaves them alone.
    pub softcap: Option<f32>,
    /// Whether there are [`AlibiSlopes`](crate::request::AlibiSlopes).
    pub alibi: bool,
    /// Whether there are [`Sinks`](crate::request::Sinks).
    pub sinks: bool,
    /// Rows of Q and of K of all sequences, where queries are varlen: `seqlen_q` and `seqlen_k` are then the
    /// most of one sequence.
    pub varlen: Option<[usize; 2]>,
    /// What is known of the cache, where keys and values are in one: `seqlen_k` is then the most of one
    /// sequence.
    pub cache: Option<CacheShape>,
    /// In how many splits the keys of a sequence are cut.
    pub splits: Splits,
}

/// What planning looks at of a [`KvCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheShape {
    /// Element type of keys and values.
    pub dtype: DType,
    /// Keys of a page.
    pub page: usize,
    /// Whether 16 neighbouring keys, from a multiple of 16 on, are always of one page.
    pub tiled: bool,
    /// Most keys of all sequences together, where that is known.
    pub total_k: Option<usize>,
}

impl CacheShape {
    fn new(cache: &KvCache) -> Self {
        let page = cache.pages.keys.shape[1];
        let tiled = match cache.paged {
            Paged::Dense { .. } => true,
            Paged::Table { .. } => page.is_multiple_of(16),
        };
        CacheShape { dtype: cache.pages.keys.dtype, page, tiled, total_k: cache.total_k }
    }
}

/// A setter for each field, of the field's name.
macro_rules! setters {
    ($($field:ident: $type:ty),* $(,)?) => {
        $(
            #[doc = concat!("Changes [`", stringify!($field), "`](#structfield.", stringify!($field), ").")]
            #[must_use]
            pub const fn $field(mut self, $field: $type) -> Self {
                self.$field = $field;
                self
            }
        )*
    };
}

impl Problem {
    /// Full attention with as many key heads as query heads, and as many keys as queries.
    pub const fn new(dtype: DType, batch: usize, seqlen: usize, heads: usize, head_dim: usize) -> Self {
        Problem {
            dtype,
            batch,
            seqlen_q: seqlen,
            seqlen_k: seqlen,
            heads_q: heads,
            heads_k: heads,
            head_dim,
            mask: Mask::Full,
            alignment: Alignment::BottomRight,
            scale: None,
            softcap: None,
            alibi: false,
            sinks: false,
            varlen: None,
            cache: None,
            splits: Splits::Auto,
        }
    }

    setters! {
        dtype: DType, batch: usize, seqlen_q: usize, seqlen_k: usize, heads_q: usize, heads_k: usize,
        head_dim: usize, mask: Mask, alignment: Alignment, alibi: bool, sinks: bool,
        varlen: Option<[usize; 2]>, cache: Option<CacheShape>, splits: Splits,
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

    /// Shapes of Q and O, and of K and V.
    pub fn shapes(&self) -> [[usize; 4]; 2] {
        let Problem { batch, heads_q, heads_k, head_dim, .. } = *self;
        let (batches, [rows_q, rows_k]) = match self.varlen {
            None => (batch, [self.seqlen_q, self.seqlen_k]),
            Some(rows) => (1, rows),
        };
        [[batches, rows_q, heads_q, head_dim], [batches, rows_k, heads_k, head_dim]]
    }

    /// The factor of the scores: what was asked for, else `1 / sqrt(head_dim)`.
    pub fn softmax_scale(&self) -> f32 {
        self.scale.unwrap_or_else(|| 1.0 / (self.head_dim as f32).sqrt())
    }

    /// The mask that a kernel must have to solve it without looking at needless columns.
    pub fn mask_kind(&self) -> MaskKind {
        match self.sides() {
            _ if self.softcap.is_some() || self.alibi => MaskKind::Local,
            (Window::UNBOUNDED, Window::UNBOUNDED) => MaskKind::Full,
            (Window::UNBOUNDED, 0) => MaskKind::Causal,
            _ => MaskKind::Local,
        }
    }

    /// The mask as kernels are told it, where keys are in tensors.
    pub(crate) fn window(&self) -> Window {
        let (left, right) = self.sides();
        let top_left = self.alignment == Alignment::TopLeft;
        // Sequences that pass validation are too short to wrap.
        let shift = if top_left { 0 } else { (self.seqlen_k as i32).wrapping_sub(self.seqlen_q as i32) };
        Window { shift, left, right }
    }

    /// Whether each sequence's last query stands at its last key, or it does not matter where it stands.
    pub(crate) fn is_bottom_right(&self) -> bool {
        let sees_all = self.sides() == (Window::UNBOUNDED, Window::UNBOUNDED) && !self.alibi;
        self.alignment == Alignment::BottomRight || self.seqlen_q == self.seqlen_k || sees_all
    }

    /// Keys that are seen before a query's position and behind it.
    fn sides(&self) -> (i32, i32) {
        const UNBOUNDED: i32 = Window::UNBOUNDED;
        let clamp = |side: Option<u32>| side.map_or(UNBOUNDED, |n| n.min(UNBOUNDED as u32) as i32);
        let (left, right) = self.mask.sides();
        (clamp(left), clamp(right))
    }

    /// The factor of scores times log2(e), and `scale / softcap`, as kernels are told them; with softcap the
    /// first is the softcap's, without it the second is 0.
    pub(crate) fn base_two(&self) -> (f32, f32) {
        match self.softcap {
            None => (self.softmax_scale() * std::f32::consts::LOG2_E, 0.0),
            Some(softcap) => (softcap * std::f32::consts::LOG2_E, self.softmax_scale() / softcap),
        }
    }

    /// Rows of one sequence and key head: queries times the query heads that share it (packed GQA).
    pub(crate) fn rows(&self) -> usize {
        (self.heads_q / self.heads_k).saturating_mul(self.seqlen_q)
    }

    /// Work tiles of `tile_m` queries of all heads.
    pub(crate) fn tiles(&self, tile_m: u32) -> u64 {
        self.seqlen_q.div_ceil(tile_m as usize) as u64 * (self.batch * self.heads_q) as u64
    }

    /// Most queries and keys of all sequences together, as far as the host knows.
    pub(crate) fn totals(&self) -> [usize; 2] {
        let [queries, keys] = self.varlen.unwrap_or([self.batch * self.seqlen_q, 0]);
        match self.cache {
            None => [queries, keys],
            Some(cache) => {
                [queries, cache.total_k.unwrap_or_else(|| self.batch.saturating_mul(self.seqlen_k))]
            }
        }
    }

    /// Whether kernels see the same problem in both, however each is spelled. Sinks do not count.
    pub(crate) fn means(&self, other: &Problem) -> bool {
        Meaning::new(self) == Meaning::new(other)
    }
}

/// A problem as kernels see it.
#[derive(PartialEq)]
struct Meaning {
    sizes: [usize; 6],
    dtype: DType,
    kind: MaskKind,
    window: Window,
    scores: (f32, f32),
    alibi: bool,
    /// Rows of varlen sequences, each aligned by itself.
    varlen: Option<([usize; 2], Alignment)>,
    cache: Option<CacheShape>,
    splits: Splits,
}

impl Meaning {
    fn new(p: &Problem) -> Self {
        let (kind, mut window) = (p.mask_kind(), p.window());
        // Where every key is seen, and none is nearer than another, it does not matter from where.
        if !p.alibi && window.left == Window::UNBOUNDED && window.right == Window::UNBOUNDED {
            window.shift = 0;
        }
        Meaning {
            sizes: [p.batch, p.seqlen_q, p.seqlen_k, p.heads_q, p.heads_k, p.head_dim],
            dtype: p.dtype,
            kind,
            window,
            scores: p.base_two(),
            alibi: p.alibi,
            varlen: p.varlen.map(|rows| (rows, p.alignment)),
            cache: p.cache,
            splits: p.splits,
        }
    }
}

impl AttentionRequest<'_> {
    /// The problem that these tensors describe, unchecked. Sizes are those of Q and of keys.
    pub fn problem(&self) -> Problem {
        let [batches, rows_q, heads_q, head_dim] = self.q.shape;
        let (heads_k, seqlen_k, rows_k, cache) = match &self.kv {
            KeysValues::Tensors { k, .. } => (k.shape[2], k.shape[1], k.shape[1], None),
            KeysValues::Varlen { k, keys, .. } => (k.shape[2], keys.max_seqlen_k, k.shape[1], None),
            KeysValues::Cache(cache) => {
                (cache.pages.keys.shape[2], cache.max_k, cache.max_k, Some(CacheShape::new(cache)))
            }
        };
        let (batch, seqlen_q, varlen) = match self.queries {
            Queries::Batched => (batches, rows_q, None),
            Queries::Varlen(queries) => (queries.batch, queries.max_seqlen_q, Some([rows_q, rows_k])),
        };
        Problem {
            dtype: self.q.dtype,
            batch,
            seqlen_q,
            seqlen_k,
            heads_q,
            heads_k,
            head_dim,
            mask: self.mask,
            alignment: self.alignment,
            scale: self.scores.scale,
            softcap: self.scores.softcap,
            alibi: self.scores.alibi.is_some(),
            sinks: self.scores.sinks.is_some(),
            varlen,
            cache,
            splits: self.splits,
        }
    }
}

impl std::fmt::Display for Problem {
    /// `f16 batch 1, heads 4/1, seqlen 17/64, head_dim 64, causal top-left, softcap 30`: sizes of Q / sizes
    /// of K.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Problem { dtype, batch, seqlen_q, seqlen_k, heads_q, heads_k, head_dim, .. } = self;
        let dtype = dtype.name();
        write!(
            f,
            "{dtype} batch {batch}, heads {heads_q}/{heads_k}, seqlen {seqlen_q}/{seqlen_k}, head_dim \
             {head_dim}, {}",
            self.mask
        )?;
        if self.alignment == Alignment::TopLeft {
            write!(f, " top-left")?;
        }
        if let Some(scale) = self.scale {
            write!(f, ", scale {scale}")?;
        }
        if let Some(softcap) = self.softcap {
            write!(f, ", softcap {softcap}")?;
        }
        if self.alibi {
            write!(f, ", alibi")?;
        }
        match self.varlen {
            Some([rows_q, rows_k]) => write!(f, ", varlen rows {rows_q}/{rows_k}"),
            None => Ok(()),
        }
    }
}
