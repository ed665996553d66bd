//! A rank of the measurements: its memory, its launches and their time.
use context_parallel::{Nccl, Transfer, Transport};
use ferroflash::driver::{Harness, RawBuffer, RawDriver, RawStream};
use ferroflash::plan::Request;
use ferroflash::request::{Scratch, TensorView};
use ferroflash::{Attention, DType, Error};
use std::ops::Range;
use std::time::Duration;

/// Query heads and key heads.
pub const HEADS: [usize; 2] = [32, 8];
pub const HEAD_DIM: usize = 128;

pub struct Rank<'a> {
    pub attention: &'a Attention<RawDriver>,
    pub nccl: &'a Nccl,
    pub stream: &'a RawStream,
    /// No wait takes longer.
    pub limit: Duration,
}

/// Device memory with a view of bf16 elements.
pub struct Tensor {
    pub view: TensorView,
    pub buffer: RawBuffer,
}

/// Returns a number between -1 and 1 for each element, rounded to bf16.
fn element(seed: u64, index: u64) -> u16 {
    let mut x = (index ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let unit = ((x ^ x >> 32) >> 40) as f32 / (1 << 23) as f32 - 1.0;
    (unit.to_bits() >> 16) as u16
}

impl Rank<'_> {
    pub fn driver(&self) -> &RawDriver {
        self.attention.driver()
    }

    pub fn wait(&self) -> Result<(), Error> {
        // SAFETY: the stream belongs to the primary context.
        unsafe { self.nccl.wait(self.stream, self.limit) }
    }

    /// Allocates a tensor with the elements of some rows.
    pub fn tensor(&self, seed: usize, heads: usize, positions: &[Range<usize>]) -> Result<Tensor, Error> {
        let rows: usize = positions.iter().map(ExactSizeIterator::len).sum();
        let (width, driver) = (heads * HEAD_DIM, self.driver());
        let mut buffer = driver.allocate((rows * width * 2).max(16))?;
        let mut at = 0;
        // Large tensors repeat their first rows: numbers cost more time than the measurement.
        let repeated = 1 << 11;
        let all = positions.iter().flat_map(|range| {
            let chunks = (range.start..range.end).step_by(repeated);
            chunks.map(move |start| start..range.end.min(start + repeated))
        });
        let mut block: (Range<usize>, Vec<u8>) = (0..0, Vec::new());
        for rows in all {
            if block.0.len() != repeated || rows.len() != repeated {
                let elements = (rows.start * width) as u64..(rows.end * width) as u64;
                block.1 = elements.flat_map(|index| element(seed as u64, index).to_le_bytes()).collect();
                block.0 = rows;
            }
            driver.upload_at(&mut buffer, at, &block.1)?;
            at += block.1.len();
        }
        let (address, elements) = (driver.address(&buffer), (rows * width) as u64);
        let view = TensorView::bshd(address, elements, DType::Bf16, [1, rows, heads, HEAD_DIM]);
        Ok(Tensor { view, buffer })
    }

    /// Returns the elements of a tensor.
    pub fn read(&self, tensor: &Tensor) -> Result<Vec<f32>, Error> {
        let mut bytes = vec![0; tensor.view.elements as usize * 2];
        self.driver().download(&tensor.buffer, &mut bytes)?;
        let float = |x: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*x)) << 16);
        Ok(bytes.as_chunks().0.iter().map(float).collect())
    }

    /// Allocates a workspace.
    pub fn workspace(&self, bytes: u64) -> Result<(RawBuffer, Scratch), Error> {
        let memory = self.driver().allocate(bytes.max(256) as usize)?;
        let scratch = Scratch::workspace(self.driver().address(&memory), bytes.max(256));
        Ok((memory, scratch))
    }

    /// Launches a request of one GPU.
    pub fn alone(&self, request: &impl Request) -> Result<(), Error> {
        let plan = self.attention.plan(request)?;
        // SAFETY: the tensors live until the stream has been waited for, and nothing else uses them.
        unsafe { self.attention.launch(&plan, request, self.stream) }
    }

    /// Waits until all ranks are here.
    fn meet(&self) -> Result<(), Error> {
        let (driver, ranks) = (self.driver(), self.nccl.ranks());
        let memory = driver.allocate(ranks.max(2) * 256)?;
        let start = driver.address(&memory);
        let address = |of: usize| start + of as u64 * 256;
        let others = || (0..ranks).filter(|other| *other != self.nccl.rank());
        let own = address(self.nccl.rank());
        let sent = others().map(|to| Transfer::Send { to, address: own, bytes: 256 });
        let received = others().map(|from| Transfer::Receive { from, address: address(from), bytes: 256 });
        let all: Vec<_> = sent.chain(received).collect();
        if !all.is_empty() {
            // SAFETY: the memory lives until the stream has been waited for, and nothing else uses it.
            unsafe {
                self.nccl.start(driver, self.stream, &all)?;
                self.nccl.finish(driver, self.stream)?;
            }
        }
        self.wait()
    }

    /// Returns the mean time of some work in ms, after one round that loads kernels and connects ranks. All
    /// ranks begin together: a rank that begins early would also measure how long it waits for the others.
    pub fn time(&self, rounds: usize, work: &mut dyn FnMut() -> Result<(), Error>) -> Result<f64, Error> {
        work()?;
        self.wait()?;
        self.meet()?;
        let driver = self.driver();
        let start = driver.record(self.stream)?;
        (0..rounds).try_for_each(|_| work())?;
        let end = driver.record(self.stream)?;
        self.wait()?;
        Ok(driver.elapsed(&start, &end)?.as_secs_f64() * 1e3 / rounds as f64)
    }

    /// Returns the time of transfers without any computation.
    pub fn link(&self, rounds: usize, transfers: &[Vec<Transfer>]) -> Result<f64, Error> {
        self.time(rounds, &mut || {
            transfers.iter().try_for_each(|transfers| {
                // SAFETY: the transfers are those of live tensors and workspaces, and the stream is this
                // rank's.
                unsafe {
                    self.nccl.start(self.driver(), self.stream, transfers)?;
                    self.nccl.finish(self.driver(), self.stream)
                }
            })
        })
    }
}

/// Compares a rank's heads with those of one GPU. Returns the largest difference of a head: the length of the
/// difference, divided by the length of the head plus the mean length of all heads.
///
/// # Errors
/// Returns an error if the difference is too large: a wrong transfer or mask gives differences of the size of
/// the elements. The crate's tests have the exact rule.
pub fn compare(name: &str, found: &[f32], expected: &[f32]) -> Result<f32, Error> {
    let length = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>().sqrt();
    let heads = expected.as_chunks::<HEAD_DIM>().0;
    let mean = heads.iter().map(|head| length(head)).sum::<f32>() / heads.len().max(1) as f32;
    let mut worst = 0f32;
    for (found, expected) in found.as_chunks::<HEAD_DIM>().0.iter().zip(heads) {
        let mut difference = *found;
        difference.iter_mut().zip(expected).for_each(|(x, y)| *x -= y);
        let of = length(&difference) / (length(expected) + mean).max(f32::MIN_POSITIVE);
        // A NaN counts as the largest difference.
        if of >= worst || of.is_nan() {
            worst = of;
        }
        if worst.is_nan() {
            break;
        }
    }
    if found.len() == expected.len() && worst <= 1.0 / 32.0 {
        return Ok(worst);
    }
    Err(Error::driver("check", None, format!("{name} differs from one GPU's by {worst} of its length")))
}
