//! How keys and values come to a rank.
use crate::chunks::{Chunks, Segment};
use crate::comm::{Comm, Memory};
use crate::shard::Shard;
use crate::transport::{Transfer, Transport};
use ferroflash::Error;
use ferroflash::driver::Driver;
use ferroflash::request::TensorView;

/// The way of keys and values to a rank, in steps. Queries stay.
pub(crate) trait Travel: Sized {
    /// Returns the keys that a rank has in each step.
    fn keys_of(chunks: &Chunks, rank: usize) -> Vec<Vec<Segment>>;

    /// Takes buffers for the keys and values of the first `steps` steps: behind them, no rank has work.
    fn new(shard: &Shard, chunks: &Chunks, rank: usize, steps: usize, memory: &mut Memory) -> Self;

    /// Returns keys and values of a step.
    fn keys(&self, step: usize) -> [TensorView; 2];

    /// Calls `compute` for each step with its keys and values. The transfers that `compute` returns begin
    /// behind its launches, and run beside those of the next step. The last of them run when this function
    /// returns.
    ///
    /// # Safety
    /// - Keys and buffers are memory of the rank's device and live until the transfers have run.
    /// - Other work does not touch the buffers, and does not write the keys.
    /// - The promises of [`Transport::start`] hold for the transfers of `compute`, until the step behind the
    ///   next one.
    unsafe fn pass<D: Driver, T: Transport<D>>(
        &self,
        comm: &Comm<'_, D, T>,
        compute: impl FnMut(usize, &[TensorView; 2]) -> Result<Vec<Transfer>, Error>,
    ) -> Result<(), Error>;
}
