//! Tensors in cudarc's slices.
use super::memory::{Memory, MemoryMut, Number, StreamGuards};
use crate::Error;
use crate::request::TensorView;

/// An address far from all buffers: a placeholder for outputs without memory.
const NOWHERE: u64 = 1 << 60;

/// An input in a slice or a view of one.
#[derive(Clone, Copy)]
#[must_use]
pub struct Tensor<'a, T> {
    data: &'a dyn Memory<T>,
    pub(super) shape: [usize; 4],
    strides: Option<[i64; 4]>,
}

impl<'a, T: Number> Tensor<'a, T> {
    /// Creates a contiguous tensor `[batch, seqlen, heads, head_dim]`. Varlen sequences are `[1, rows, heads,
    /// head_dim]`.
    pub fn new(data: &'a impl Memory<T>, shape: [usize; 4]) -> Self {
        Tensor { data, shape, strides: None }
    }

    /// Sets the strides: elements from one batch, row, head and column to the next; see
    /// [`TensorView::strides`].
    pub fn strides(self, strides: [i64; 4]) -> Self {
        Tensor { strides: Some(strides), ..self }
    }

    /// Returns the tensor's view. `guards` holds its memory for a stream.
    pub(super) fn on<const MOST: usize>(
        &self,
        guards: &mut StreamGuards<'a, MOST>,
        name: &'static str,
    ) -> Result<TensorView, Error> {
        Ok(view::<T>(guards.read(name, self.data)?, self.shape, self.strides))
    }

    /// Returns a contiguous output of this shape, at an address without memory.
    pub(super) fn output(shape: [usize; 4]) -> TensorView {
        view::<T>((NOWHERE, u64::MAX), shape, None)
    }
}

/// An output in a slice or a view of one.
#[must_use]
pub struct TensorMut<'a, T> {
    data: &'a mut dyn MemoryMut<T>,
    pub(super) shape: [usize; 4],
    strides: Option<[i64; 4]>,
}

impl<'a, T: Number> TensorMut<'a, T> {
    /// Creates a contiguous output `[batch, seqlen, heads, head_dim]`.
    pub fn new(data: &'a mut impl MemoryMut<T>, shape: [usize; 4]) -> Self {
        TensorMut { data, shape, strides: None }
    }

    /// Sets the strides; see [`Tensor::strides`].
    pub fn strides(self, strides: [i64; 4]) -> Self {
        TensorMut { strides: Some(strides), ..self }
    }

    /// Returns the tensor's view. `guards` holds its memory for a stream.
    pub(super) fn on<'t, const MOST: usize>(
        self,
        guards: &mut StreamGuards<'t, MOST>,
        name: &'static str,
    ) -> Result<TensorView, Error>
    where
        'a: 't,
    {
        Ok(view::<T>(guards.write(name, self.data)?, self.shape, self.strides))
    }
}

fn view<T: Number>(
    (address, elements): (u64, u64),
    shape: [usize; 4],
    strides: Option<[i64; 4]>,
) -> TensorView {
    let contiguous = TensorView::bshd(address, elements, T::DTYPE, shape);
    TensorView { strides: strides.unwrap_or(contiguous.strides), ..contiguous }
}
