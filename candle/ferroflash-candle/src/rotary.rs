//! Rotary embedding of queries and keys: the table of angles, and the rotation of a launch.
use crate::errors::{invalid, refused};
use crate::inputs::Read;
use candle::cuda_backend::CudaDType;
use candle::cuda_backend::cudarc::driver::CudaView;
use candle::{CudaStorage, DType, Result, Tensor};
use ferroflash::cudarc::{Element, Number, Rotary, SlotNumber, Tensor as Input, TensorMut};
use ferroflash::request::RotaryStyle;
use std::sync::Mutex;

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

/// The rotation of an append.
pub(crate) struct Turn<'a> {
    pub q: &'a Tensor,
    pub table: &'a RotaryTable,
    pub positions: &'a Tensor,
    /// The first column of a head that rotates.
    pub first_column: usize,
    pub rotated: Mutex<&'a mut CudaStorage>,
}

/// The outcome of a launch.
pub(crate) type Refusable = std::result::Result<(), ferroflash::Error>;

/// A launch of [`Turn::launch`], for any types of angles and positions.
pub(crate) trait Launched<T> {
    fn with<A: Number, P: SlotNumber>(self, rotary: Rotary<'_, T, A, P>) -> Refusable;
}

impl Turn<'_> {
    /// Calls `launched` with the rotation.
    pub(crate) fn launch<T: Element + CudaDType>(&self, launched: impl Launched<T>) -> Result<()> {
        let [cos, sin] = [Read::of("cos", &self.table.cos), Read::of("sin", &self.table.sin)];
        match cos.dtype() {
            DType::F32 => self.by([cos.data::<f32>(2)?, sin.data(2)?], launched),
            _ => self.by([cos.data::<T>(2)?, sin.data(2)?], launched),
        }
    }

    fn by<T: Element + CudaDType, A: Number>(
        &self,
        angles: [CudaView<'_, A>; 2],
        launched: impl Launched<T>,
    ) -> Result<()> {
        let positions = Read::of("positions", self.positions);
        match positions.dtype() {
            DType::U32 => self.at(angles, positions.data::<u32>(1)?, launched),
            DType::I64 => self.at(angles, positions.data::<i64>(1)?, launched),
            other => Err(invalid("positions", format_args!("{other:?}"), "their dtype must be u32 or i64")),
        }
    }

    fn at<T: Element + CudaDType, A: Number, P: SlotNumber>(
        &self,
        [cos, sin]: [CudaView<'_, A>; 2],
        positions: CudaView<'_, P>,
        launched: impl Launched<T>,
    ) -> Result<()> {
        let (tokens, heads, head_dim) = self.q.dims3()?;
        let q = Read::of("q", self.q);
        let strides = [0, q.strides()[0], q.strides()[1], q.strides()[2]].map(|stride| stride as i64);
        let (q, shape) = (q.data::<T>(3)?, [1, tokens, heads, head_dim]);
        let mut rotated = crate::here::lock(&self.rotated);
        let to = rotated.as_cuda_slice_mut::<T>()?;
        let (rows, columns) = self.table.cos.dims2()?;
        let rotary = Rotary::new(&cos, &sin, [rows, columns], &positions)
            .style(self.table.style)
            .first_column(self.first_column)
            .queries(Input::new(&q, shape).strides(strides), TensorMut::new(to, shape));
        launched.with(rotary).map_err(refused)
    }
}
