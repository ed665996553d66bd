//! Problems in words.
use super::Problem;
use crate::request::Alignment;
use spec::Precision;
use std::fmt;

impl fmt::Display for Problem {
    /// Prints a problem as `f16 batch 1, heads 4/1, seqlen 17/64, head_dim 64, causal top-left, softcap 30`:
    /// the first number of a pair belongs to Q, the second to K.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The dtypes that are left out follow from these, or from the tensors. So does a caller's tile.
        let Problem {
            dtype,
            kv_dtype: _,
            o_dtype: _,
            grad_dtype: _,
            batch,
            seqlen_q,
            seqlen_k,
            heads_q,
            heads_k,
            head_dim: _,
            head_dim_v: _,
            mask,
            alignment,
            scale,
            softcap,
            alibi,
            sinks,
            bias,
            varlen,
            cache: _,
            splits: _,
            precision,
            invariance: _,
            variant,
            block_tile: _,
        } = *self;
        let (dtype, columns) = (dtype.name(), self.named_columns());
        write!(f, "{dtype} batch {batch}, heads {heads_q}/{heads_k}, seqlen {seqlen_q}/{seqlen_k}, ")?;
        write!(f, "{columns}, {mask}")?;
        if alignment == Alignment::TopLeft {
            write!(f, " top-left")?;
        }
        if let Some(scale) = scale {
            write!(f, ", scale {scale}")?;
        }
        if let Some(softcap) = softcap {
            write!(f, ", softcap {softcap}")?;
        }
        if alibi {
            write!(f, ", alibi")?;
        }
        if sinks {
            write!(f, ", sinks")?;
        }
        if let Some(bias) = bias {
            write!(f, ", bias {}", bias.name())?;
        }
        if let Some(variant) = variant {
            write!(f, ", variant {}", variant.name())?;
        }
        if precision != Precision::Inputs {
            write!(f, ", precision {}", precision.name())?;
        }
        match varlen {
            Some([rows_q, rows_k]) => write!(f, ", varlen rows {rows_q}/{rows_k}"),
            None => Ok(()),
        }
    }
}
