//! Rotary embedding of queries and keys: the table of angles.
use crate::errors::invalid;
use candle::{Result, Tensor};
use ferroflash::request::RotaryStyle;

/// Cosines and sines of rotary embedding, contiguous `(positions, columns / 2)` each, f32 or the dtype of the
/// queries. All layers of a model share a table. The first `columns` columns of a head rotate, a multiple of
/// 16; in a latent cache, the first `columns` columns behind the value.
#[derive(Clone, Debug)]
pub struct RotaryTable {
    /// Cosines.
    pub cos: Tensor,
    /// Sines, like `cos`.
    pub sin: Tensor,
    /// The columns that rotate together.
    pub style: RotaryStyle,
}

impl RotaryTable {
    /// Refuses sines that do not match the cosines, and tables and positions that are not contiguous.
    pub(crate) fn check(&self, positions: &Tensor) -> Result<()> {
        let RotaryTable { cos, sin, .. } = self;
        if sin.dims() != cos.dims() || sin.dtype() != cos.dtype() || cos.rank() != 2 {
            let expected = format_args!("it must be (positions, columns / 2), like cos: {:?}", cos.shape());
            return Err(invalid("sin", format_args!("{:?}", sin.shape()), expected));
        }
        for (name, tensor) in [("cos", cos), ("sin", sin), ("positions", positions)] {
            if !tensor.is_contiguous() {
                return Err(invalid(name, format_args!("{:?}", tensor.stride()), "it must be contiguous"));
            }
        }
        Ok(())
    }
}
