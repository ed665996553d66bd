//! Problems as kernels see them, to decide which problems one plan serves.
use super::{CacheShape, Problem};
use crate::request::{Alignment, Invariance, Mask, Prefix, Splits};
use crate::variant::AnyVariant;
use crate::{DType, MaskKind};
use spec::{Precision, Window};

impl Problem {
    /// Returns whether both problems mean the same to a kernel. Requests may state the same problem
    /// differently. Sinks are not compared.
    pub(crate) fn means(&self, other: &Problem) -> bool {
        Meaning::new(self) == Meaning::new(other)
    }
}

/// A problem as kernels see it.
#[derive(PartialEq)]
struct Meaning {
    sizes: [usize; 7],
    dtypes: [DType; 4],
    kind: MaskKind,
    /// The prefix or the chunk of a mask.
    number: Option<u32>,
    window: Window,
    scores: (f32, f32),
    alibi: bool,
    bias: Option<DType>,
    /// The numbers of rows of varlen sequences, and the alignment of each sequence.
    varlen: Option<([usize; 2], Alignment)>,
    cache: Option<CacheShape>,
    splits: Splits,
    precision: Precision,
    invariance: Invariance,
    variant: Option<AnyVariant>,
}

impl Meaning {
    fn new(p: &Problem) -> Self {
        let (kind, mut window) = (p.mask_kind(), p.window());
        // Without ALiBi, alignment has no effect if every query sees every key, or if bits name each query's
        // keys.
        if p.is_anywhere((window.left, window.right)) {
            window.shift = 0;
        }
        Meaning {
            sizes: [p.batch, p.seqlen_q, p.seqlen_k, p.heads_q, p.heads_k, p.head_dim, p.head_dim_v],
            dtypes: [p.dtype, p.kv_dtype, p.o_dtype, p.grad_dtype],
            kind,
            number: match p.cheapest_mask() {
                Mask::Prefix(Prefix::All(number)) | Mask::Chunked { chunk: number } => Some(number),
                _ => None,
            },
            window,
            scores: p.base_two(),
            alibi: p.alibi,
            bias: p.bias,
            varlen: p.varlen.map(|rows| (rows, p.alignment)),
            cache: p.cache,
            splits: p.splits,
            precision: p.precision,
            invariance: p.invariance,
            variant: p.variant,
        }
    }
}
