//! Ranks that are threads with simulated cards.
use crate::transport::{Rows, Transfer, Transport};
use ferroflash::Error;
use ferroflash::driver::{SimDriver, SimStream};
use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// A rank of one process, on a simulated card. If a rank ends, the transfers of the others fail at once. If
/// the ranks' calls disagree, all of them fail.
#[derive(Debug)]
pub struct Threads {
    rank: usize,
    to: Vec<Sender<Message>>,
    from: Vec<Receiver<Message>>,
    limit: Duration,
}

#[derive(Debug)]
enum Message {
    /// A call begins.
    Call(String),
    Data(Vec<u8>),
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

    /// Receives a message of a rank.
    fn receive(&self, from: usize) -> Result<Message, Error> {
        let receiver = self.from.get(from).ok_or_else(|| self.no_rank("from", from))?;
        receiver.recv_timeout(self.limit).map_err(|error| match error {
            RecvTimeoutError::Disconnected => ended(from),
            RecvTimeoutError::Timeout => {
                let limit = self.limit.as_secs_f64();
                failed(format!("rank {from} has sent nothing for {limit} s"))
            }
        })
    }

    fn no_rank(&self, name: &'static str, rank: usize) -> Error {
        Error::invalid(name, rank, format_args!("it must be below the number of ranks, {}", self.to.len()))
    }
}

/// Returns zeros in host memory.
fn zeros(bytes: u64) -> Result<Vec<u8>, Error> {
    let mut data = Vec::new();
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    data.try_reserve_exact(length).map_err(|error| Error::driver("allocate", None, error))?;
    data.resize(length, 0);
    Ok(data)
}

impl Transport<SimDriver> for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.to.len()
    }

    fn begin(&self, call: fmt::Arguments<'_>) -> Result<(), Error> {
        let own = call.to_string();
        let others = || (0..self.to.len()).filter(|other| *other != self.rank);
        // A rank that has ended has a message for this rank, or the receive fails.
        others().for_each(|other| drop(self.to[other].send(Message::Call(own.clone()))));
        let mut outcome = Ok(());
        for other in others() {
            let theirs = match self.receive(other)? {
                Message::Call(theirs) => theirs,
                Message::Data(data) => format!("{} bytes of a transfer", data.len()),
            };
            if theirs != own && outcome.is_ok() {
                let expected = format!("rank {other} must call what rank {} calls, {own}", self.rank);
                outcome = Err(Error::invalid("call", theirs, expected));
            }
        }
        outcome
    }

    unsafe fn start(&self, driver: &SimDriver, _: &SimStream, transfers: &[Transfer]) -> Result<(), Error> {
        for transfer in transfers {
            if let Transfer::Send { to, address, bytes } = *transfer {
                let sender = self.to.get(to).ok_or_else(|| self.no_rank("to", to))?;
                let mut data = zeros(bytes)?;
                driver.read(address, &mut data)?;
                sender.send(Message::Data(data)).map_err(|_| ended(to))?;
            }
        }
        for transfer in transfers {
            if let Transfer::Receive { from, address, bytes } = *transfer {
                let data = match self.receive(from)? {
                    Message::Data(data) => data,
                    Message::Call(call) => {
                        let words = format!("rank {from} begins a {call} in the place of {bytes} bytes");
                        return Err(failed(words));
                    }
                };
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
        driver.write(address, &zeros(bytes)?)
    }

    unsafe fn write(
        &self,
        driver: &SimDriver,
        _: &SimStream,
        address: u64,
        bytes: &[u8],
    ) -> Result<(), Error> {
        driver.write(address, bytes)
    }

    unsafe fn copy(
        &self,
        driver: &SimDriver,
        _: &SimStream,
        from: Rows,
        to: Rows,
        [rows, bytes]: [u64; 2],
    ) -> Result<(), Error> {
        let mut row = zeros(bytes)?;
        (0..rows).try_for_each(|index| {
            let address = |of: &Rows| of.address.wrapping_add(index.wrapping_mul(of.apart));
            driver.read(address(&from), &mut row)?;
            driver.write(address(&to), &row)
        })
    }
}

fn ended(rank: usize) -> Error {
    failed(format!("rank {rank} has ended"))
}

fn failed(message: String) -> Error {
    Error::driver("transfer", None, message)
}
