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
        // Two problems that differ in a field that is not compared share a plan. The mask, its alignment, the
        // scale and the softcap are compared as kernels see them, a caller's tiles with its parameters.
        let Problem {
            dtype,
            kv_dtype,
            o_dtype,
            grad_dtype,
            batch,
            seqlen_q,
            seqlen_k,
            heads_q,
            heads_k,
            head_dim,
            head_dim_v,
            mask: _,
            alignment,
            scale: _,
            softcap: _,
            alibi,
            sinks: _,
            bias,
            varlen,
            cache,
            splits,
            precision,
            invariance,
            variant,
            block_tile: _,
        } = *p;
        let (kind, mut window) = (p.mask_kind(), p.window());
        // Without ALiBi, alignment has no effect if every query sees every key, or if bits name each query's
        // keys.
        if p.is_anywhere((window.left, window.right)) {
            window.shift = 0;
        }
        Meaning {
            sizes: [batch, seqlen_q, seqlen_k, heads_q, heads_k, head_dim, head_dim_v],
            dtypes: [dtype, kv_dtype, o_dtype, grad_dtype],
            kind,
            number: match p.cheapest_mask() {
                Mask::Prefix(Prefix::All(number)) | Mask::Chunked { chunk: number } => Some(number),
                _ => None,
            },
            window,
            scores: p.base_two(),
            alibi,
            bias,
            varlen: varlen.map(|rows| (rows, alignment)),
            cache,
            splits,
            precision,
            invariance,
            variant,
        }
    }
}
