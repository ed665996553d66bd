//! cudarc's memory in launches: element types, slices and views. Guards tell cudarc which stream used which
//! slice.
use super::front::FlashAttention;
use crate::plan::{PlanOf, Request};
use crate::request::Index;
use crate::{DType, Error};
use ::cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceRepr, SyncOnDrop,
    ValidAsZeroBits,
};
use std::ops::Range;

mod sealed {
    pub trait Sealed {}
}
use sealed::Sealed;

/// A number type in device memory: `half::f16`, `half::bf16`, `f32`, `u8` (an e4m3 byte), and `i8`. Requests
/// check which of these types a tensor may have.
///
/// ```compile_fail,E0277
/// #[derive(Clone, Copy)]
/// struct Byte(u8);
/// unsafe impl cudarc::driver::DeviceRepr for Byte {}
/// unsafe impl cudarc::driver::ValidAsZeroBits for Byte {}
/// // It would claim two bytes a number, where slices of it have one.
/// impl ferroflash::cudarc::Number for Byte {
///     const DTYPE: ferroflash::DType = ferroflash::DType::F16;
/// }
/// ```
pub trait Number: DeviceRepr + ValidAsZeroBits + Copy + Sealed {
    /// The dtype in this crate.
    const DTYPE: DType;
}

/// A type of queries and outputs: `half::f16` or `half::bf16`.
pub trait Element: Number {}

macro_rules! numbers {
    ($($type:ty: $dtype:ident),*) => {
        $(impl Sealed for $type {}
        impl Number for $type {
            const DTYPE: DType = DType::$dtype;
        })*
    };
}
numbers!(half::f16: F16, half::bf16: Bf16, f32: F32, u8: E4m3, i8: Int8);
impl Element for half::f16 {}
impl Element for half::bf16 {}

/// A type of slots and positions: `i32`, `i64`, or `u32` below 2^31.
pub trait SlotNumber: DeviceRepr + Sealed {
    /// Whether the type has 64 bits.
    const WIDE: bool;
}

impl Sealed for i32 {}
impl SlotNumber for i32 {
    const WIDE: bool = false;
}

impl Sealed for u32 {}
impl SlotNumber for u32 {
    const WIDE: bool = false;
}

impl Sealed for i64 {}
impl SlotNumber for i64 {
    const WIDE: bool = true;
}

/// Memory of an input: `CudaSlice`, `CudaView` or `CudaViewMut`. The trait is sealed, because only cudarc's
/// own types guarantee correct addresses and lengths.
pub trait Memory<T>: DevicePtr<T> + Sealed {}

/// Memory of an output: `CudaSlice` or `CudaViewMut`.
pub trait MemoryMut<T>: DevicePtrMut<T> + Sealed {}

macro_rules! memory {
    ($($trait:ident: $($name:ident $(<$life:lifetime>)?),*;)*) => {
        $($(impl<T> $trait<T> for $name<$($life,)? T> {})*)*
    };
}
impl<T> Sealed for CudaSlice<T> {}
impl<T> Sealed for CudaView<'_, T> {}
impl<T> Sealed for CudaViewMut<'_, T> {}
memory! {
    Memory: CudaSlice, CudaView<'_>, CudaViewMut<'_>;
    MemoryMut: CudaSlice, CudaViewMut<'_>;
}

/// Lengths, page indices or sequence starts, `i32` or `u32` ([`Index`]). Call `into` on a reference to a
/// slice or a view.
#[derive(Clone, Copy)]
#[must_use]
pub struct Integers<'a>(Kind<'a>);

#[derive(Clone, Copy)]
enum Kind<'a> {
    Signed(&'a dyn Memory<i32>),
    Unsigned(&'a dyn Memory<u32>),
}

macro_rules! integers {
    ($($kind:ident: $type:ty => $($memory:ty),*;)*) => {
        $($(impl<'a> From<&'a $memory> for Integers<'a> {
            fn from(data: &'a $memory) -> Self {
                Integers(Kind::$kind(data))
            }
        })*)*
    };
}
integers! {
    Signed: i32 => CudaSlice<i32>, CudaView<'_, i32>, CudaViewMut<'_, i32>;
    Unsigned: u32 => CudaSlice<u32>, CudaView<'_, u32>, CudaViewMut<'_, u32>;
}

/// Returns the bits of `data` as `u32`, for code that has only `u32`. A negative integer becomes 2³¹ or more.
pub fn unsigned<'a>(data: &CudaView<'a, i32>) -> CudaView<'a, u32> {
    // SAFETY: both types have 32 bits, and each bit pattern is a valid value of both.
    unsafe { data.transmute(data.len()) }.expect("equal count and size")
}

/// Returns the bytes of `data` as `i8`, for code that has only `u8`.
pub fn signed<'a>(data: &CudaView<'a, u8>) -> CudaView<'a, i8> {
    // SAFETY: both types have 8 bits, and each bit pattern is a valid value of both.
    unsafe { data.transmute(data.len()) }.expect("equal count and size")
}

/// Returns the bytes of `data` as `i8`, for code that has only `u8`.
pub fn signed_mut<'a>(data: &'a mut CudaViewMut<'_, u8>) -> CudaViewMut<'a, i8> {
    let count = data.len();
    // SAFETY: the reason above holds here too.
    unsafe { data.transmute_mut(count) }.expect("equal count and size")
}

/// One f32 per head, or per sequence and head: ALiBi slopes, scales of a cache.
#[derive(Clone, Copy)]
#[must_use]
pub struct PerHead<'a> {
    pub(super) data: &'a dyn Memory<f32>,
    pub(super) strides: [i64; 2],
}

impl<'a> PerHead<'a> {
    /// Returns numbers `[heads]`, which all sequences share.
    pub fn new(data: &'a impl Memory<f32>) -> Self {
        PerHead { data, strides: [0, 1] }
    }

    /// Sets the strides, in elements, from one sequence and from one head to the next. `[heads, 1]` is a
    /// contiguous `[sequences][heads]`.
    pub fn strides(self, strides: [i64; 2]) -> Self {
        PerHead { strides, ..self }
    }
}

/// The slices of one launch, all of the launch's context. A guard holds a slice for a stream: when the guard
/// is dropped, after the launch, cudarc records that the stream used the slice. There are at most `MOST`
/// slices, because a launch allocates nothing.
pub(super) struct StreamGuards<'a, const MOST: usize = 21> {
    attention: &'a FlashAttention,
    stream: &'a CudaStream,
    /// Whether the stream captures a graph.
    pub(super) capturing: bool,
    guards: [Option<Held<'a>>; MOST],
    count: usize,
}

/// A slice that is held for a stream.
struct Held<'a> {
    _guard: SyncOnDrop<'a>,
    /// The slice's bytes, if it is held for writing.
    written: Option<Range<u64>>,
}

impl<'a, const MOST: usize> StreamGuards<'a, MOST> {
    /// Creates an empty set.
    pub fn on(attention: &'a FlashAttention, stream: &'a CudaStream) -> Result<Self, Error> {
        attention.is_here("stream", stream)?;
        let capturing = attention.is_capturing(stream)?;
        Ok(StreamGuards { attention, stream, capturing, guards: [const { None }; MOST], count: 0 })
    }

    /// Holds memory for reading; returns its address and number of elements.
    pub fn read<T>(&mut self, name: &'static str, data: &'a dyn Memory<T>) -> Result<(u64, u64), Error> {
        self.attention.is_here(name, data.stream())?;
        let (address, guard) = data.device_ptr(self.stream);
        self.keep(guard, None);
        Ok((address, data.len() as u64))
    }

    /// Holds memory for writing; returns its address and number of elements.
    pub fn write<T>(
        &mut self,
        name: &'static str,
        data: &'a mut dyn MemoryMut<T>,
    ) -> Result<(u64, u64), Error> {
        self.attention.is_here(name, data.stream())?;
        let (elements, bytes) = (data.len() as u64, data.num_bytes() as u64);
        let (address, guard) = data.device_ptr_mut(self.stream);
        self.keep(guard, Some(address..address + bytes));
        Ok((address, elements))
    }

    /// Holds integers for reading.
    pub fn integers(&mut self, name: &'static str, Integers(kind): Integers<'a>) -> Result<Index, Error> {
        let (address, elements) = match kind {
            Kind::Signed(data) => self.read(name, data)?,
            Kind::Unsigned(data) => self.read(name, data)?,
        };
        Ok(Index::new(address, elements))
    }

    /// Enqueues a plan.
    ///
    /// # Safety
    /// - These guards, or others for this stream that live until this function returns, hold every buffer
    ///   that the request names. These guards hold each buffer that the launch writes, for writing.
    /// - The request's counters are zeros.
    pub unsafe fn launch<R: Request>(&self, plan: &PlanOf<R>, request: &R) -> Result<(), Error> {
        let written = || self.guards.iter().flatten().filter_map(|held| held.written.as_ref());
        let is_held = |address: &u64| written().any(|bytes| bytes.contains(address));
        debug_assert!(request.written().iter().all(is_held), "an output is not held for writing");
        // SAFETY: the caller keeps the preconditions.
        unsafe { self.attention.launch(plan, request, self.stream) }
    }

    fn keep(&mut self, guard: SyncOnDrop<'a>, written: Option<Range<u64>>) {
        self.guards[self.count] = Some(Held { _guard: guard, written });
        self.count += 1;
    }
}
