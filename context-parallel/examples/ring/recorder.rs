//! A transport that remembers what travels, or sends nothing.
use context_parallel::{Nccl, Rows, Transfer, Transport};
use ferroflash::Error;
use ferroflash::driver::{RawDriver, RawStream};
use std::cell::RefCell;
use std::fmt;

/// NCCL, and the transfers since the last look.
pub struct Recorder<'a> {
    nccl: &'a Nccl,
    /// Whether transfers run: without them, results are wrong, and the time is that of the launches.
    sends: bool,
    all: RefCell<Vec<Vec<Transfer>>>,
}

impl<'a> Recorder<'a> {
    pub fn new(nccl: &'a Nccl, sends: bool) -> Self {
        Recorder { nccl, sends, all: RefCell::new(Vec::new()) }
    }

    /// Returns the transfers since the last look.
    pub fn take(&self) -> Vec<Vec<Transfer>> {
        self.all.take()
    }
}

/// Returns the bytes that a rank sends to others.
pub fn sent(all: &[Vec<Transfer>], rank: usize) -> u64 {
    let bytes = |transfer: &Transfer| match *transfer {
        Transfer::Send { to, bytes, .. } if to != rank => bytes,
        _ => 0,
    };
    all.iter().flatten().map(bytes).sum()
}

impl Transport<RawDriver> for Recorder<'_> {
    fn rank(&self) -> usize {
        self.nccl.rank()
    }

    fn ranks(&self) -> usize {
        self.nccl.ranks()
    }

    fn begin(&self, call: fmt::Arguments<'_>) -> Result<(), Error> {
        self.nccl.begin(call)
    }

    unsafe fn start(
        &self,
        driver: &RawDriver,
        stream: &RawStream,
        transfers: &[Transfer],
    ) -> Result<(), Error> {
        self.all.borrow_mut().push(transfers.to_vec());
        if !self.sends {
            return Ok(());
        }
        // SAFETY: the caller makes the promises.
        unsafe { self.nccl.start(driver, stream, transfers) }
    }

    unsafe fn finish(&self, driver: &RawDriver, stream: &RawStream) -> Result<(), Error> {
        if !self.sends {
            return Ok(());
        }
        // SAFETY: the caller makes the promises.
        unsafe { self.nccl.finish(driver, stream) }
    }

    unsafe fn clear(
        &self,
        driver: &RawDriver,
        stream: &RawStream,
        address: u64,
        bytes: u64,
    ) -> Result<(), Error> {
        // SAFETY: the caller makes the promises.
        unsafe { self.nccl.clear(driver, stream, address, bytes) }
    }

    unsafe fn write(
        &self,
        driver: &RawDriver,
        stream: &RawStream,
        address: u64,
        bytes: &[u8],
    ) -> Result<(), Error> {
        // SAFETY: the caller makes the promises.
        unsafe { self.nccl.write(driver, stream, address, bytes) }
    }

    unsafe fn copy(
        &self,
        driver: &RawDriver,
        stream: &RawStream,
        from: Rows,
        to: Rows,
        shape: [u64; 2],
    ) -> Result<(), Error> {
        // SAFETY: the caller makes the promises.
        unsafe { self.nccl.copy(driver, stream, from, to, shape) }
    }
}
