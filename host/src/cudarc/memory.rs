//! cudarc's memory in launches: slices without their element types, and guards, which tell cudarc which
//! stream used which slice.
use super::front::FlashAttention;
use crate::plan::{PlanOf, Request};
use crate::request::Resolve;
use crate::{DType, Error};
use ::cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice,
    SyncOnDrop, ValidAsZeroBits,
};
use std::ops::Range;
use std::sync::Arc;

mod sealed {
    use super::*;

    pub trait Sealed {}

    /// Memory without its element type.
    pub trait Bytes {
        fn bytes(&self) -> u64;
        fn stream(&self) -> &Arc<CudaStream>;
        /// Holds the memory for reading on a stream; returns its address.
        fn read<'a>(&'a self, on: &'a CudaStream) -> (u64, SyncOnDrop<'a>);
    }

    pub trait BytesMut: Bytes {
        /// Holds the memory for writing on a stream; returns its address.
        fn write<'a>(&'a mut self, on: &'a CudaStream) -> (u64, SyncOnDrop<'a>);
    }
}
use sealed::Sealed;
use sealed::{Bytes, BytesMut};

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

/// Implements a sealed trait, which is one constant for each type.
macro_rules! types {
    ($trait:ident::$constant:ident: $of:ty; $($type:ty: $value:expr),*) => {
        $(impl Sealed for $type {}
        impl $trait for $type {
            const $constant: $of = $value;
        })*
    };
}
types!(Number::DTYPE: DType; half::f16: DType::F16, half::bf16: DType::Bf16);
types!(Number::DTYPE: DType; f32: DType::F32, u8: DType::E4m3, i8: DType::Int8);
impl Element for half::f16 {}
impl Element for half::bf16 {}

/// A type of slots and positions: `i32`, `i64`, or `u32` below 2^31.
pub trait SlotNumber: DeviceRepr + Sealed {
    /// Whether the type has 64 bits.
    const WIDE: bool;
}

/// A type of lengths, page indices and offsets: `i32` or `u32`.
pub trait Integer: SlotNumber {}

types!(SlotNumber::WIDE: bool; i32: false, u32: false, i64: true);
impl Integer for i32 {}
impl Integer for u32 {}

/// Memory of an input: `CudaSlice`, `CudaView` or `CudaViewMut`. The trait is sealed, because only cudarc's
/// own types guarantee correct addresses and lengths.
pub trait Memory<T>: Bytes {}

/// Memory of an output: `CudaSlice` or `CudaViewMut`.
pub trait MemoryMut<T>: Memory<T> + BytesMut {}

macro_rules! memory {
    ($($memory:ty),*; $($written:ty),*) => {
        $(impl<T> Bytes for $memory {
            fn bytes(&self) -> u64 {
                self.num_bytes() as u64
            }
            fn stream(&self) -> &Arc<CudaStream> {
                DeviceSlice::stream(self)
            }
            fn read<'a>(&'a self, on: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
                self.device_ptr(on)
            }
        }
        impl<T> Memory<T> for $memory {})*
        $(impl<T> BytesMut for $written {
            fn write<'a>(&'a mut self, on: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
                self.device_ptr_mut(on)
            }
        }
        impl<T> MemoryMut<T> for $written {})*
    };
}
memory!(CudaSlice<T>, CudaView<'_, T>, CudaViewMut<'_, T>; CudaSlice<T>, CudaViewMut<'_, T>);

/// Returns the bits of `data` as `u32`, for code that has only `u32`. A negative integer becomes 2³¹ or more.
pub fn unsigned<'a>(data: &CudaView<'a, i32>) -> CudaView<'a, u32> {
    // SAFETY: both types have 32 bits, and each bit pattern is a valid value of both.
    unsafe { data.transmute(data.len()) }.expect("equal count and size")
}

/// Memory that a launch reads: a slice or a view of one, without its element type.
#[derive(Clone, Copy)]
#[must_use]
pub struct Slice<'a> {
    /// `None` is the memory that the request names before this memory.
    data: Option<&'a dyn Bytes>,
    /// Number of bytes before its begin.
    skipped: u64,
    /// Number of bytes from its begin on, at most.
    most: u64,
}

impl<'a> Slice<'a> {
    /// Names memory.
    pub fn new<T>(data: &'a impl Memory<T>) -> Self {
        Slice { data: Some(data), skipped: 0, most: u64::MAX }
    }

    /// Returns the memory without its first `bytes` bytes.
    pub(super) fn without(self, bytes: u64) -> Self {
        Slice { skipped: self.skipped.saturating_add(bytes), ..self }
    }

    /// Returns the first `bytes` bytes of the memory.
    pub fn first(self, bytes: u64) -> Self {
        Slice { most: bytes, ..self }
    }

    /// Names the memory that the request names before this memory.
    pub(super) const fn again() -> Self {
        Slice { data: None, skipped: 0, most: u64::MAX }
    }
}

/// Memory that a launch writes: a slice or a view of one, without its element type.
#[must_use]
pub struct SliceMut<'a> {
    /// `None` is the memory that the request names before this memory.
    data: Option<&'a mut dyn BytesMut>,
    /// Number of bytes before its begin.
    skipped: u64,
}

impl<'a> SliceMut<'a> {
    /// Names memory.
    pub fn new<T>(data: &'a mut impl MemoryMut<T>) -> Self {
        SliceMut { data: Some(data), skipped: 0 }
    }

    /// Names memory of any type.
    pub(super) fn of(data: &'a mut dyn BytesMut) -> Self {
        SliceMut { data: Some(data), skipped: 0 }
    }

    /// Names the memory that the request names before this memory, from a byte on.
    pub(super) const fn again(skipped: u64) -> Self {
        SliceMut { data: None, skipped }
    }

    /// Returns the memory without its first `bytes` bytes.
    pub fn behind(self, bytes: u64) -> Self {
        SliceMut { skipped: self.skipped.saturating_add(bytes), ..self }
    }

    /// Returns the memory for a shorter time.
    pub fn shorter<'b>(self) -> SliceMut<'b>
    where
        'a: 'b,
    {
        let SliceMut { data, skipped } = self;
        SliceMut { data: data.map(|data| data as &mut dyn BytesMut), skipped }
    }
}

/// An address far from all buffers: the place of the first output without memory.
const NOWHERE: u64 = 1 << 60;
/// The distance of the places of outputs without memory: more than any output takes.
const APART: u64 = 1 << 56;

/// The most slices of a set. A backward pass has the most: its forward's, four gradients, the LSE's gradient,
/// and a workspace.
const MOST: usize = 32;

/// The slices of one launch, all of the launch's context. A guard holds a slice for a stream: when the guard
/// is dropped, after the launch, cudarc records that the stream used the slice. The set has room for a
/// limited number of slices, because a launch allocates nothing.
pub(super) struct StreamGuards<'a> {
    attention: &'a FlashAttention,
    stream: &'a CudaStream,
    /// Whether the stream captures a graph.
    pub(super) capturing: bool,
    guards: [Option<Held<'a>>; MOST],
    count: usize,
    /// The number of outputs without memory.
    nowhere: u64,
}

/// A slice that is held for a stream.
struct Held<'a> {
    _guard: SyncOnDrop<'a>,
    bytes: Range<u64>,
    is_written: bool,
}

impl<'a> StreamGuards<'a> {
    /// Creates an empty set.
    pub fn on(attention: &'a FlashAttention, stream: &'a CudaStream) -> Result<Self, Error> {
        attention.is_here("stream", stream)?;
        let capturing = attention.is_capturing(stream)?;
        Ok(StreamGuards {
            attention,
            stream,
            capturing,
            guards: [const { None }; MOST],
            count: 0,
            nowhere: 0,
        })
    }

    /// Enqueues a plan.
    ///
    /// # Safety
    /// - These guards, or others for this stream that live until this function returns, hold every buffer
    ///   that the request names. These guards hold each buffer that the launch writes, for writing.
    /// - The request's counters are zeros.
    pub unsafe fn launch<R: Request>(&self, plan: &PlanOf<R>, request: &R) -> Result<(), Error> {
        let written = || self.guards.iter().flatten().filter(|held| held.is_written);
        let is_held = |address: &u64| written().any(|held| held.bytes.contains(address));
        debug_assert!(request.written().iter().all(is_held), "an output is not held for writing");
        // SAFETY: the caller keeps the preconditions.
        unsafe { self.attention.launch(plan, request, self.stream) }
    }

    fn keep(&mut self, bytes: u64, (address, guard): (u64, SyncOnDrop<'a>), is_written: bool) {
        let bytes = address..address + bytes;
        self.guards[self.count] = Some(Held { _guard: guard, bytes, is_written });
        self.count += 1;
    }

    /// Returns the memory that the request has named last.
    fn held(&self) -> Option<&Held<'a>> {
        self.guards[..self.count].last().and_then(Option::as_ref)
    }

    /// Returns the address and the number of elements of the last memory, without its first bytes.
    fn last(&self, skipped: u64, most: u64, element: u64) -> (u64, u64) {
        let bytes = self.held().map_or(NOWHERE..NOWHERE, |held| held.bytes.clone());
        let address = bytes.start.saturating_add(skipped);
        (address, bytes.end.saturating_sub(address).min(most) / element)
    }
}

impl<'t, 'a: 't> Resolve<Slice<'a>> for StreamGuards<'t> {
    type Error = Error;

    fn resolve(
        &mut self,
        field: &'static str,
        Slice { data, skipped, most }: Slice<'a>,
        element: u64,
    ) -> Result<(u64, u64), Error> {
        if let Some(data) = data {
            self.attention.is_here(field, data.stream())?;
            self.keep(data.bytes(), data.read(self.stream), false);
        }
        Ok(self.last(skipped, most, element))
    }
}

impl<'t, 'a: 't> Resolve<SliceMut<'a>> for StreamGuards<'t> {
    type Error = Error;

    fn resolve(
        &mut self,
        field: &'static str,
        SliceMut { data, skipped }: SliceMut<'a>,
        element: u64,
    ) -> Result<(u64, u64), Error> {
        if let Some(data) = data {
            self.attention.is_here(field, data.stream())?;
            self.keep(data.bytes(), data.write(self.stream), true);
        } else if !self.held().is_some_and(|held| held.is_written) {
            // Safe code can take such a part of a request for another part, behind an input.
            let expected = "this part belongs behind the keys of its pages; name its own memory";
            return Err(Error::invalid(field, "memory of another part", expected));
        }
        Ok(self.last(skipped, u64::MAX, element))
    }
}

/// An output that has no memory yet.
impl Resolve<()> for StreamGuards<'_> {
    type Error = Error;

    fn resolve(&mut self, _: &'static str, (): (), _: u64) -> Result<(u64, u64), Error> {
        let place = NOWHERE + self.nowhere * APART;
        self.nowhere += 1;
        Ok((place, APART))
    }
}
