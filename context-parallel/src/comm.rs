//! A rank: its engine, its stream and its transport.
use crate::transport::{Rows, Transfer, Transport};
use ferroflash::driver::Driver;
use ferroflash::plan::Request;
use ferroflash::request::{Scratch, TensorView};
use ferroflash::{Attention, Error};
use std::fmt;

/// A rank, as functions of this crate take it.
#[derive(Debug)]
pub struct Comm<'a, D: Driver, T> {
    pub(crate) attention: &'a Attention<D>,
    pub(crate) transport: &'a T,
    pub(crate) stream: &'a D::Stream,
}

impl<'a, D: Driver, T: Transport<D>> Comm<'a, D, T> {
    /// Creates a rank. Its launches run on `stream`.
    pub const fn new(attention: &'a Attention<D>, transport: &'a T, stream: &'a D::Stream) -> Self {
        Comm { attention, transport, stream }
    }

    /// Returns the own rank.
    pub fn rank(&self) -> usize {
        self.transport.rank()
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.transport.ranks()
    }

    /// [`Transport::begin`].
    pub(crate) fn begin(&self, call: fmt::Arguments<'_>) -> Result<(), Error> {
        self.transport.begin(call)
    }

    /// Checks a request as its launch would.
    pub(crate) fn check<R: Request>(&self, request: &R) -> Result<(), Error> {
        self.attention.plan(request).map(|_| ())
    }

    /// Plans and launches a request.
    ///
    /// # Safety
    /// The requirements of [`Attention::enqueue`] for the request.
    pub(crate) unsafe fn launch<R: Request>(&self, request: &R) -> Result<(), Error> {
        let plan = self.attention.plan(request)?;
        // SAFETY: the caller makes the promises of `enqueue`. The plan was made for this device.
        unsafe { self.attention.launch(&plan, request, self.stream) }
    }

    /// [`Transport::start`].
    ///
    /// # Safety
    /// The requirements of [`Transport::start`] for memory.
    pub(crate) unsafe fn start(&self, transfers: &[Transfer]) -> Result<(), Error> {
        if transfers.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller makes the promises for memory. The stream belongs to the engine's driver.
        unsafe { self.transport.start(self.attention.driver(), self.stream, transfers) }
    }

    /// [`Transport::finish`].
    pub(crate) fn finish(&self) -> Result<(), Error> {
        // SAFETY: the stream belongs to the engine's driver.
        unsafe { self.transport.finish(self.attention.driver(), self.stream) }
    }

    /// [`Transport::write`].
    ///
    /// # Safety
    /// The requirements of [`Transport::write`] for memory.
    pub(crate) unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        // SAFETY: the caller makes the promises for memory. The stream belongs to the engine's driver.
        unsafe { self.transport.write(self.attention.driver(), self.stream, address, bytes) }
    }

    /// Enqueues zeros on some rows of a contiguous tensor.
    ///
    /// # Safety
    /// The requirements of [`Transport::clear`] for memory.
    #[cfg(feature = "training")]
    pub(crate) unsafe fn clear(&self, view: &TensorView) -> Result<(), Error> {
        // SAFETY: the caller makes the promises for memory. The stream belongs to the engine's driver.
        pieces(view).try_for_each(|[address, bytes]| unsafe {
            self.transport.clear(self.attention.driver(), self.stream, address, bytes)
        })
    }
}

impl<D: Driver, T: Transport<D>> Comm<'_, D, T> {
    /// Enqueues a copy between views of one shape, whose heads are contiguous.
    ///
    /// # Safety
    /// The requirements of [`Transport::copy`] for memory.
    pub(crate) unsafe fn copy(&self, from: &TensorView, to: &TensorView) -> Result<(), Error> {
        let [batch, rows, heads, columns] = from.shape;
        let bytes = from.element_bytes();
        let shape = [rows as u64, (heads * columns) as u64 * bytes];
        let of = |view: &TensorView, index: usize| {
            let skipped = index as u64 * view.strides[0] as u64 * bytes;
            Rows { address: view.address.wrapping_add(skipped), apart: view.strides[1] as u64 * bytes }
        };
        let batches = if shape.contains(&0) { 0 } else { batch };
        // SAFETY: the caller makes the promises for memory. The stream belongs to the engine's driver.
        (0..batches).try_for_each(|index| unsafe {
            let (from, to) = (of(from, index), of(to, index));
            self.transport.copy(self.attention.driver(), self.stream, from, to, shape)
        })
    }
}

/// Returns address and bytes of each batch of some rows of a tensor with contiguous rows.
pub(crate) fn pieces(view: &TensorView) -> impl Iterator<Item = [u64; 2]> + use<> {
    let [batch, rows, heads, columns] = view.shape;
    let bytes = (rows * heads * columns) as u64 * view.element_bytes();
    let (address, apart) = (view.address, view.strides[0] as u64 * view.element_bytes());
    let batches = if bytes == 0 { 0 } else { batch as u64 };
    (0..batches).map(move |index| [address.wrapping_add(index.wrapping_mul(apart)), bytes])
}

/// Returns the transfers that send some rows to a rank.
pub(crate) fn send(to: usize, view: &TensorView) -> impl Iterator<Item = Transfer> + use<> {
    pieces(view).map(move |[address, bytes]| Transfer::Send { to, address, bytes })
}

/// Returns the transfers that receive some rows from a rank.
pub(crate) fn receive(from: usize, view: &TensorView) -> impl Iterator<Item = Transfer> + use<> {
    pieces(view).map(move |[address, bytes]| Transfer::Receive { from, address, bytes })
}

/// Parts of a workspace, one behind the other.
#[derive(Debug)]
pub(crate) struct Memory {
    start: u64,
    next: u64,
    bytes: u64,
}

/// Alignment of the parts of a workspace, in bytes.
const ALIGNMENT: u64 = 256;

/// The address of memory whose bytes are only counted. No device has it, so nothing overlaps it.
pub(crate) const NOWHERE: u64 = 1 << 60;

impl Memory {
    /// Takes the memory of a request, or memory of any size to count its bytes.
    pub fn new(scratch: &Scratch) -> Self {
        let (start, bytes) = match scratch {
            Scratch::Memory { workspace, .. } => (workspace.address, workspace.bytes),
            _ => (NOWHERE, u64::MAX / 4),
        };
        Memory { start, next: start, bytes }
    }

    /// Takes a part and returns its address.
    pub fn take(&mut self, bytes: u64) -> u64 {
        let address = self.next.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
        self.next = address.saturating_add(bytes);
        address
    }

    /// Takes a contiguous tensor.
    pub fn tensor(&mut self, like: &TensorView, [batch, rows]: [usize; 2]) -> TensorView {
        let [_, _, heads, columns] = like.shape;
        let elements = [batch, rows, heads, columns]
            .iter()
            .fold(1, |all: u64, extent| all.saturating_mul(*extent as u64));
        let address = self.take(elements.saturating_mul(like.element_bytes()));
        TensorView::bshd(address, elements, like.dtype, [batch, rows, heads, columns])
    }

    /// Returns the bytes that workspaces with these parts and `more` bytes have, at any alignment.
    pub const fn needed(&self, more: u64) -> u64 {
        self.next.saturating_add(more).saturating_sub(self.start).saturating_add(2 * ALIGNMENT)
    }

    /// Returns the rest of the memory.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the parts and `more` bytes do not fit.
    pub fn rest(&mut self, more: u64) -> Result<[u64; 2], Error> {
        let address = self.take(0);
        let used = address - self.start;
        match self.bytes.checked_sub(used) {
            Some(rest) if rest >= more && address < u64::MAX => Ok([address, rest]),
            _ => {
                let expected = "it must have the bytes that the workspace function of this crate returns";
                Err(Error::invalid("workspace.bytes", self.bytes, expected))
            }
        }
    }
}
