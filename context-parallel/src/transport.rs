//! A transport moves bytes between ranks.
use ferroflash::Error;
use ferroflash::driver::Driver;
use std::fmt;

/// One message of device memory. A message to the own rank is a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Sends bytes to a rank.
    Send {
        /// The receiver.
        to: usize,
        /// Device address of the first byte.
        address: u64,
        /// Number of bytes, at least 1.
        bytes: u64,
    },
    /// Receives bytes from a rank.
    Receive {
        /// The sender.
        from: usize,
        /// Device address of the first byte.
        address: u64,
        /// Number of bytes, at least 1.
        bytes: u64,
    },
}

/// Rows of bytes, at equal distances from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Device address of the first byte.
    pub address: u64,
    /// Bytes from the start of one row to the start of the next row.
    pub apart: u64,
}

/// Moves bytes between ranks, beside the work of a stream. Messages of two ranks arrive in the order in which
/// the sender has listed them, and the receiver lists them in the same order with the same sizes.
///
/// One call of [`start`](Transport::start) is a collective: a step of a ring, an all-gather, an all-to-all,
/// or the way home of gradients. Its messages say which; lengths may be uneven, and addresses need no order.
///
/// Implement this trait to run on another library, for example on MPI: docs/several-gpus.md shows how.
pub trait Transport<D: Driver> {
    /// Returns the own rank.
    fn rank(&self) -> usize;

    /// Returns the number of ranks.
    fn ranks(&self) -> usize;

    /// Every call of this crate says once what it is, before its transfers: text that is equal on all ranks
    /// that agree. A transport that exchanges the texts, for example in a debug build, ends a call of ranks
    /// that disagree with an error. Without this exchange, wrong sizes meet each other, or a rank waits. The
    /// default does nothing.
    ///
    /// # Errors
    /// Returns an error if the ranks disagree, or if one of them has ended.
    fn begin(&self, _call: fmt::Arguments<'_>) -> Result<(), Error> {
        Ok(())
    }

    /// Begins transfers. They wait for all work that `stream` has now, and run beside later work. The
    /// transfers of two calls run in the order of the calls. The transfers of one call may run at the same
    /// time: a rank that sends never waits for its own receive.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if a rank has ended or the transport fails.
    ///
    /// # Safety
    /// - The memory of each transfer is memory of the driver's context, and lives until the transfer has run.
    /// - Until [`finish`](Transport::finish), other work writes no memory that a transfer reads, and does not
    ///   touch memory that a transfer writes.
    /// - `stream` belongs to the driver's context.
    unsafe fn start(&self, driver: &D, stream: &D::Stream, transfers: &[Transfer]) -> Result<(), Error>;

    /// Makes later work of `stream` wait for all transfers that have begun.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the transport fails.
    ///
    /// # Safety
    /// - `stream` belongs to the driver's context.
    unsafe fn finish(&self, driver: &D, stream: &D::Stream) -> Result<(), Error>;

    /// Enqueues zeros on `stream`.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the driver fails.
    ///
    /// # Safety
    /// - The memory is memory of the driver's context, and lives until the zeros are written. Other work
    ///   touches it in the order of `stream` only.
    /// - `stream` belongs to the driver's context.
    unsafe fn clear(&self, driver: &D, stream: &D::Stream, address: u64, bytes: u64) -> Result<(), Error>;

    /// Enqueues a copy of the host's bytes on `stream`: offsets of varlen sequences. The bytes may be gone
    /// when the function returns.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the driver fails.
    ///
    /// # Safety
    /// - The memory from `address` on is memory of the driver's context for all bytes, and lives until the
    ///   copy has run. Other work touches it in the order of `stream` only.
    /// - `stream` belongs to the driver's context.
    unsafe fn write(&self, driver: &D, stream: &D::Stream, address: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Enqueues a copy on `stream`. `shape` has the number of rows and the bytes of a row, both at least 1.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the driver fails.
    ///
    /// # Safety
    /// - The memory of both sides is memory of the driver's context, does not overlap, and lives until the
    ///   copy has run. Other work touches it in the order of `stream` only.
    /// - `stream` belongs to the driver's context.
    unsafe fn copy(
        &self,
        driver: &D,
        stream: &D::Stream,
        from: Rows,
        to: Rows,
        shape: [u64; 2],
    ) -> Result<(), Error>;
}
