//! Biases and masks in cudarc's slices.
use super::memory::{Integers, Memory, Number, StreamGuards};
use crate::request::{self, Mask, Prefix};
use crate::{DType, Error};
use ::cudarc::driver::{CudaSlice, CudaView, CudaViewMut};
use half::{bf16, f16};

/// The elements of a bias: f16, bf16 or f32. A reference to a slice or to a view converts into `Floats`
/// (`into`).
#[derive(Clone, Copy)]
#[must_use]
pub struct Floats<'a>(Kind<'a>);

#[derive(Clone, Copy)]
enum Kind<'a> {
    F16(&'a dyn Memory<f16>),
    Bf16(&'a dyn Memory<bf16>),
    F32(&'a dyn Memory<f32>),
}

macro_rules! floats {
    ($($kind:ident: $type:ty),*) => {$(
        floats!(from $kind: CudaSlice<$type>, CudaView<'_, $type>, CudaViewMut<'_, $type>);
    )*};
    (from $kind:ident: $($memory:ty),*) => {$(
        impl<'a> From<&'a $memory> for Floats<'a> {
            fn from(data: &'a $memory) -> Self {
                Floats(Kind::$kind(data))
            }
        }
    )*};
}
floats!(F16: f16, Bf16: bf16, F32: f32);

/// An additive bias: [`request::Bias`] in a slice or a view of one.
#[derive(Clone, Copy)]
#[must_use]
pub struct Bias<'a> {
    data: Floats<'a>,
    shape: [usize; 4],
    strides: Option<[i64; 4]>,
}

impl<'a> Bias<'a> {
    /// Creates a contiguous bias `[batch or 1, heads or 1, seqlen_q or 1, seqlen_k]`.
    pub fn new(data: impl Into<Floats<'a>>, shape: [usize; 4]) -> Self {
        Bias { data: data.into(), shape, strides: None }
    }

    /// Sets the strides, in elements: from one batch, head, query and key to the next; see
    /// [`request::Bias::strides`].
    pub fn strides(self, strides: [i64; 4]) -> Self {
        Bias { strides: Some(strides), ..self }
    }

    /// Returns the bias as a view. `guards` holds its memory for a stream.
    pub(super) fn on<const MOST: usize>(
        &self,
        guards: &mut StreamGuards<'a, MOST>,
    ) -> Result<request::Bias, Error> {
        fn read<'a, T: Number, const MOST: usize>(
            guards: &mut StreamGuards<'a, MOST>,
            data: &'a dyn Memory<T>,
        ) -> Result<(DType, (u64, u64)), Error> {
            Ok((T::DTYPE, guards.read("bias", data)?))
        }
        let (dtype, (address, elements)) = match self.data.0 {
            Kind::F16(data) => read(guards, data)?,
            Kind::Bf16(data) => read(guards, data)?,
            Kind::F32(data) => read(guards, data)?,
        };
        let contiguous = request::Bias::rows(address, elements, dtype, self.shape, self.shape[3]);
        let strides = self.strides.unwrap_or(contiguous.strides);
        Ok(request::Bias { strides, ..contiguous })
    }
}

/// Bits of a mask: [`request::MaskBits`] in a slice or a view of one.
#[derive(Clone, Copy)]
#[must_use]
pub struct MaskBits<'a> {
    data: &'a dyn Memory<u8>,
    shape: [usize; 4],
    strides: Option<[i64; 3]>,
}

impl<'a> MaskBits<'a> {
    /// Creates a mask of contiguous rows `[batch or 1, heads or 1, seqlen_q]` of `columns / 8` bytes, rounded
    /// up. `columns` is the last extent of `shape`. Each row has one bit for each of the sequence's last
    /// `columns` keys.
    pub fn new(data: &'a impl Memory<u8>, shape: [usize; 4]) -> Self {
        MaskBits { data, shape, strides: None }
    }

    /// Sets the strides, in bytes: from one batch, head and row to the next.
    pub fn strides(self, strides: [i64; 3]) -> Self {
        MaskBits { strides: Some(strides), ..self }
    }
}

/// A mask. If a mask has memory, this memory is a slice.
#[derive(Clone, Copy)]
pub(super) enum Shown<'a> {
    /// A mask without memory.
    Plain(Mask),
    Prefix(Integers<'a>),
    Bits(MaskBits<'a>),
}

impl<'a> Shown<'a> {
    /// Returns the mask. `guards` holds its memory for a stream.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] for a mask that names memory by its address: safe code cannot guarantee
    /// that this memory lives.
    pub fn on<const MOST: usize>(self, guards: &mut StreamGuards<'a, MOST>) -> Result<Mask, Error> {
        match self {
            Shown::Plain(mask @ (Mask::Prefix(Prefix::Each(_)) | Mask::Bits(_))) => {
                let expected =
                    "its memory must be a slice here; call `prefix_lengths` or `mask_bits` instead of `mask`";
                Err(Error::invalid("mask", mask, expected))
            }
            Shown::Plain(mask) => Ok(mask),
            Shown::Prefix(lengths) => {
                Ok(Mask::Prefix(Prefix::Each(guards.integers("mask.prefix", lengths)?)))
            }
            Shown::Bits(MaskBits { data, shape, strides }) => {
                let (address, bytes) = guards.read("mask.bits", data)?;
                let contiguous = request::MaskBits::contiguous(address, bytes, shape);
                let strides = strides.unwrap_or(contiguous.strides);
                Ok(Mask::Bits(request::MaskBits { strides, ..contiguous }))
            }
        }
    }
}
