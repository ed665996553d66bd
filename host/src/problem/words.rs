//! Problems in words.
use super::Problem;
use crate::request::Alignment;
use spec::Precision;
use std::fmt;

impl fmt::Display for Problem {
    /// Prints a problem as `f16 batch 1, heads 4/1, seqlen 17/64, head_dim 64, causal top-left, softcap 30`:
    /// the first number of a pair belongs to Q, the second to K.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { dtype, batch, seqlen_q, seqlen_k, heads_q, heads_k, .. } = self;
        let (dtype, columns) = (dtype.name(), self.named_columns());
        write!(
            f,
            "{dtype} batch {batch}, heads {heads_q}/{heads_k}, seqlen {seqlen_q}/{seqlen_k}, {columns}, {}",
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
        if self.sinks {
            write!(f, ", sinks")?;
        }
        if let Some(bias) = self.bias {
            write!(f, ", bias {}", bias.name())?;
        }
        if let Some(variant) = self.variant {
            write!(f, ", variant {}", variant.name())?;
        }
        if self.precision != Precision::Inputs {
            write!(f, ", precision {}", self.precision.name())?;
        }
        match self.varlen {
            Some([rows_q, rows_k]) => write!(f, ", varlen rows {rows_q}/{rows_k}"),
            None => Ok(()),
        }
    }
}
