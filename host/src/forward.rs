//! What is asked for: [`Forward`] with its tensors, [`Problem`] without them.
use crate::{AlibiSlopes, DType, LseView, MaskKind, Packed, TensorView, Workspace};

/// Which keys a query sees.
///
/// By default the last query is aligned with the last key (bottom-right, FlashAttention's rule): query `i`
/// stands at key `i + seqlen_k - seqlen_q`. A row that sees no key gives 0, and `-inf` as its log-sum-exp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mask {
    /// All keys.
    #[default]
    Full,
    /// Keys up to the query's own position.
    Causal,
    /// Keys from `left` before the query's position to `right` behind it, both inclusive; `None` is
    /// unbounded. `Window { left: None, right: Some(0) }` is causal.
    Window {
        /// Keys before the query's position.
        left: Option<u32>,
        /// Keys behind the query's position.
        right: Option<u32>,
    },
}

impl Mask {
    /// Keys that are seen before a query's position and behind it; `None` is unbounded.
    pub const fn sides(self) -> (Option<u32>, Option<u32>) {
        match self {
            Mask::Full => (None, None),
            Mask::Causal => (None, Some(0)),
            Mask::Window { left, right } => (left, right),
        }
    }
}

impl std::fmt::Display for Mask {
    /// `full`, `causal`, or `window 1023,0`, where -1 is unbounded.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let side = |side: Option<u32>| side.map_or("-1".into(), |n| n.to_string());
        match *self {
            Mask::Full => write!(f, "full"),
            Mask::Causal => write!(f, "causal"),
            Mask::Window { left, right } => write!(f, "window {},{}", side(left), side(right)),
        }
    }
}

/// Where queries stand among keys where there are more of the one than of the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Alignment {
    /// The last query at the last key (FlashAttention).
    #[default]
    BottomRight,
    /// The first query at the first key (PyTorch's `is_causal`).
    TopLeft,
}

/// A problem without its tensors: what planning and [`crate::supports`] look at. Begins with
/// [`Problem::new`]; what differs is changed by the function of its name.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Problem {
    /// Element type of Q, K, V and O.
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
    /// Whether there are [`AlibiSlopes`].
    pub alibi: bool,
    /// Rows of Q and of K of all sequences, where these are packed: `seqlen_q` and `seqlen_k` are then the
    /// most of one.
    pub packed: Option<[usize; 2]>,
}

/// A setter for each field, of the field's name.
macro_rules! setters {
    ($($field:ident: $type:ty),* $(,)?) => {
        $(
            #[doc = concat!("Changes [`", stringify!($field), "`](#structfield.", stringify!($field), ").")]
            pub const fn $field(mut self, $field: $type) -> Self {
                self.$field = $field;
                self
            }
        )*
    };
}

/// Setters of what happens to scores, the same for every request.
macro_rules! score_setters {
    () => {
        /// Which keys a query sees.
        pub const fn mask(mut self, mask: Mask) -> Self {
            self.mask = mask;
            self
        }

        /// Where queries stand among keys where their numbers differ.
        pub const fn align(mut self, alignment: Alignment) -> Self {
            self.alignment = alignment;
            self
        }

        /// Factor of the scores, above 0.
        pub const fn scale(mut self, scale: f32) -> Self {
            self.scale = Some(scale);
            self
        }

        /// Scores become `softcap * tanh(score / softcap)`. 0 turns it off, as in FlashAttention.
        pub const fn softcap(mut self, softcap: f32) -> Self {
            self.softcap = if softcap == 0.0 { None } else { Some(softcap) };
            self
        }
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
            packed: None,
        }
    }

    setters! {
        dtype: DType, batch: usize, seqlen_q: usize, seqlen_k: usize, heads_q: usize, heads_k: usize,
        head_dim: usize, alibi: bool, packed: Option<[usize; 2]>,
    }
    score_setters!();

    /// Shapes of Q and O, and of K and V.
    pub fn shapes(&self) -> [[usize; 4]; 2] {
        let Problem { batch, heads_q, heads_k, head_dim, .. } = *self;
        let (batches, [rows_q, rows_k]) = match self.packed {
            None => (batch, [self.seqlen_q, self.seqlen_k]),
            Some(rows) => (1, rows),
        };
        [[batches, rows_q, heads_q, head_dim], [batches, rows_k, heads_k, head_dim]]
    }

    /// The factor of the scores: what was asked for, else `1 / sqrt(head_dim)`.
    pub fn softmax_scale(&self) -> f32 {
        self.scale.unwrap_or_else(|| 1.0 / (self.head_dim as f32).sqrt())
    }

    /// The mask that an entry must have to solve it without looking at needless columns.
    pub fn mask_kind(&self) -> MaskKind {
        crate::validate::mask(self).0
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
        match self.packed {
            Some([rows_q, rows_k]) => write!(f, ", packed rows {rows_q}/{rows_k}"),
            None => Ok(()),
        }
    }
}

/// One forward attention: `o = softmax(mask(softcap(scale * q k^T) - alibi)) v`, accumulated in f32.
///
/// Shapes are `[batch, seqlen, heads, head_dim]`: `q` and `o` with `seqlen_q` and `heads_q`, `k` and `v` with
/// `seqlen_k` and `heads_k`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
#[must_use = "a description of a launch does nothing by itself; plan and launch it"]
pub struct Forward<'a> {
    /// Queries.
    pub q: TensorView,
    /// Keys.
    pub k: TensorView,
    /// Values.
    pub v: TensorView,
    /// Output. Written whole; overlaps nothing else.
    pub o: TensorView,
    /// Which keys a query sees.
    pub mask: Mask,
    /// Where queries stand among keys.
    pub alignment: Alignment,
    /// Factor of the scores; `None` is `1 / sqrt(head_dim)`.
    pub scale: Option<f32>,
    /// Scores become `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
    /// Scores fall with the distance of key and query.
    pub alibi: Option<AlibiSlopes>,
    /// Where the log-sum-exp of each row goes.
    pub lse: Option<LseView>,
    /// Where each sequence begins, if they are packed.
    pub packed: Option<Packed>,
    /// Memory for kernels that share a tile's keys between blocks; without it the planner takes none of
    /// these.
    pub workspace: Option<Workspace>,
    /// The entry to run, by its name or by one of the lineage's, instead of the planner's choice.
    pub config: Option<&'a str>,
}

impl<'a> Forward<'a> {
    /// Full attention with a scale of `1 / sqrt(head_dim)`.
    pub const fn new(q: TensorView, k: TensorView, v: TensorView, o: TensorView) -> Self {
        let (mask, alignment) = (Mask::Full, Alignment::BottomRight);
        Forward {
            q,
            k,
            v,
            o,
            mask,
            alignment,
            scale: None,
            softcap: None,
            alibi: None,
            lse: None,
            packed: None,
            workspace: None,
            config: None,
        }
    }

    score_setters!();

    /// Let scores fall with the distance of key and query, before the mask.
    pub const fn alibi(mut self, slopes: AlibiSlopes) -> Self {
        self.alibi = Some(slopes);
        self
    }

    /// Also write the log-sum-exp of each row.
    pub const fn lse(mut self, lse: LseView) -> Self {
        self.lse = Some(lse);
        self
    }

    /// Sequences of any lengths, one behind the other in tensors of one batch.
    pub const fn packed(mut self, packed: Packed) -> Self {
        self.packed = Some(packed);
        self
    }

    /// Let the launch use this memory, which overlaps no tensor: few queries on many keys then keep the whole
    /// card busy. [`crate::Plan::workspace_bytes`] says how much a plan needs.
    pub const fn workspace(mut self, workspace: Workspace) -> Self {
        self.workspace = Some(workspace);
        self
    }

    /// Run this entry (a name of [`crate::ENTRIES`] or of the lineage) instead of the planner's
    /// choice.
    pub const fn config(mut self, entry: &'a str) -> Self {
        self.config = Some(entry);
        self
    }

    /// The problem that these tensors describe, unchecked. Sizes are those of Q and K.
    pub const fn problem(&self) -> Problem {
        let [batches, rows_q, heads_q, head_dim] = self.q.shape;
        let [_, rows_k, heads_k, _] = self.k.shape;
        let (batch, [seqlen_q, seqlen_k], packed) = match self.packed {
            None => (batches, [rows_q, rows_k], None),
            Some(p) => (p.batch, [p.max_seqlen_q, p.max_seqlen_k], Some([rows_q, rows_k])),
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
            scale: self.scale,
            softcap: self.softcap,
            alibi: self.alibi.is_some(),
            packed,
        }
    }
}
