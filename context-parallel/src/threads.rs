//! Ranks that are threads with simulated cards.
use crate::transport::{Rows, Transfer, Transport};
use ferroflash::Error;
use ferroflash::driver::{SimDriver, SimStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// A rank of one process, on a simulated card. If a rank ends, the transfers of the others fail at once.
#[derive(Debug)]
pub struct Threads {
    rank: usize,
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
    limit: Duration,
}

impl Threads {
    /// Creates all ranks, in their order. Give each of them to a thread. A receive fails if its message has
    /// not come within `limit`.
    pub fn new(ranks: usize, limit: Duration) -> Vec<Self> {
        let mut all: Vec<_> =
            (0..ranks).map(|rank| Threads { rank, to: Vec::new(), from: Vec::new(), limit }).collect();
        for from in 0..ranks {
            for to in 0..ranks {
                let (sender, receiver) = channel();
                all[from].to.push(sender);
                all[to].from.push(receiver);
            }
        }
        all
    }
}

impl Transport<SimDriver> for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.to.len()
    }

    unsafe fn start(&self, driver: &SimDriver, _: &SimStream, transfers: &[Transfer]) -> Result<(), Error> {
        for transfer in transfers {
            if let Transfer::Send { to, address, bytes } = *transfer {
                let mut data = vec![0; bytes as usize];
                driver.read(address, &mut data)?;
                self.to[to].send(data).map_err(|_| ended(to))?;
            }
        }
        for transfer in transfers {
            if let Transfer::Receive { from, address, bytes } = *transfer {
                let data = self.from[from].recv_timeout(self.limit).map_err(|error| match error {
                    RecvTimeoutError::Disconnected => ended(from),
                    RecvTimeoutError::Timeout => {
                        let limit = self.limit.as_secs_f64();
                        failed(format!("rank {from} has sent nothing for {limit} s"))
                    }
                })?;
                if data.len() as u64 != bytes {
                    return Err(failed(format!("rank {from} has sent {} bytes, not {bytes}", data.len())));
                }
                driver.write(address, &data)?;
            }
        }
        Ok(())
    }

    unsafe fn finish(&self, _: &SimDriver, _: &SimStream) -> Result<(), Error> {
        Ok(())
    }

    unsafe fn clear(&self, driver: &SimDriver, _: &SimStream, address: u64, bytes: u64) -> Result<(), Error> {
        driver.write(address, &vec![0; bytes as usize])
    }

    unsafe fn copy(
        &self,
        driver: &SimDriver,
        _: &SimStream,
        from: Rows,
        to: Rows,
        [rows, bytes]: [u64; 2],
    ) -> Result<(), Error> {
        let mut row = vec![0; bytes as usize];
        (0..rows).try_for_each(|index| {
            driver.read(from.address + index * from.apart, &mut row)?;
            driver.write(to.address + index * to.apart, &row)
        })
    }
}

fn ended(rank: usize) -> Error {
    failed(format!("rank {rank} has ended"))
}

fn failed(message: String) -> Error {
    Error::driver("transfer", None, message)
}
