//! A transport of your own: TCP sockets, through the memory of the host.
//!
//! `start` copies what the rank sends, and threads write it to the sockets. `finish` reads what the rank
//! receives. With MPI, `start` would call `MPI_Isend` and `MPI_Irecv`, and `finish` `MPI_Waitall`.
use context_parallel::{Rows, Transfer, Transport};
use ferroflash::Error;
use ferroflash::driver::{SimDriver, SimStream};
use std::cell::RefCell;
use std::fmt;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// The connection with a rank.
struct Peer {
    socket: TcpStream,
    /// To the thread that writes: a rank that sends must not wait for the receiver.
    sender: Sender<Vec<u8>>,
}

/// A rank.
pub struct Sockets {
    rank: usize,
    /// One for each rank. The rank itself has a connection with itself, too.
    peers: Vec<Peer>,
    /// Receives that have begun: rank, address and bytes.
    pending: RefCell<Vec<(usize, u64, u64)>>,
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::driver("socket", None, error)
}

impl Peer {
    fn new(socket: TcpStream, limit: Duration) -> std::io::Result<Self> {
        socket.set_read_timeout(Some(limit))?;
        let (sender, messages) = channel::<Vec<u8>>();
        let mut to = socket.try_clone()?;
        // The thread ends with the rank, or when the other rank closes its side. The reader notices.
        std::thread::spawn(move || messages.iter().try_for_each(|message| to.write_all(&message)));
        Ok(Peer { socket, sender })
    }

    /// Sends a message with its length.
    fn send(&self, data: Vec<u8>) -> Result<(), Error> {
        let all = [&(data.len() as u64).to_le_bytes()[..], &data].concat();
        self.sender.send(all).map_err(failed)
    }

    fn receive(&self) -> Result<Vec<u8>, Error> {
        let (mut length, mut socket) = ([0; 8], &self.socket);
        socket.read_exact(&mut length).map_err(failed)?;
        let mut data = Vec::new();
        let length = u64::from_le_bytes(length);
        socket.take(length).read_to_end(&mut data).map_err(failed)?;
        if data.len() as u64 == length {
            return Ok(data);
        }
        Err(Error::driver("socket", None, format!("{} bytes of {length} have come", data.len())))
    }
}

impl Sockets {
    /// Connects all ranks of this process. Ranks of several machines would exchange their addresses first.
    pub fn new(ranks: usize, limit: Duration) -> Result<Vec<Self>, Error> {
        let mut peers: Vec<Vec<Peer>> = (0..ranks).map(|_| Vec::new()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        for a in 0..ranks {
            for b in 0..=a {
                let address = listener.local_addr().map_err(failed)?;
                let near = TcpStream::connect(address).map_err(failed)?;
                let (far, _) = listener.accept().map_err(failed)?;
                let [near, far] = [near, far].map(|socket| Peer::new(socket, limit).map_err(failed));
                // A rank reads from itself what it has written to the other end.
                if a == b {
                    let (near, far) = (near?, far?);
                    peers[a].push(Peer { socket: far.socket, sender: near.sender });
                } else {
                    peers[a].push(near?);
                    peers[b].push(far?);
                }
            }
        }
        let new = |(rank, peers)| Sockets { rank, peers, pending: RefCell::default() };
        Ok(peers.into_iter().enumerate().map(new).collect())
    }
}

impl Transport<SimDriver> for Sockets {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.peers.len()
    }

    fn begin(&self, call: fmt::Arguments<'_>) -> Result<(), Error> {
        let own = call.to_string();
        self.peers.iter().try_for_each(|peer| peer.send(own.clone().into()))?;
        for (rank, peer) in self.peers.iter().enumerate() {
            let theirs = String::from_utf8_lossy(&peer.receive()?).into_owned();
            if theirs != own {
                return Err(Error::invalid("call", theirs, format!("rank {rank} must call {own}")));
            }
        }
        Ok(())
    }

    unsafe fn start(&self, card: &SimDriver, stream: &SimStream, all: &[Transfer]) -> Result<(), Error> {
        // Transfers run in the order of the calls: these may send what the last ones have received.
        // SAFETY: the caller makes the promises.
        unsafe { self.finish(card, stream)? };
        for transfer in all {
            match *transfer {
                Transfer::Send { to, address, bytes } => {
                    let mut data = vec![0; bytes as usize];
                    // On a GPU: wait for the stream, then copy. The simulator has run what it was told.
                    card.read(address, &mut data)?;
                    self.peers[to].send(data)?;
                }
                Transfer::Receive { from, address, bytes } => {
                    self.pending.borrow_mut().push((from, address, bytes));
                }
            }
        }
        Ok(())
    }

    unsafe fn finish(&self, card: &SimDriver, _: &SimStream) -> Result<(), Error> {
        for (from, address, bytes) in self.pending.take() {
            let data = self.peers[from].receive()?;
            if data.len() as u64 != bytes {
                let message = format!("rank {from} has sent {} bytes, not {bytes}", data.len());
                return Err(Error::driver("socket", None, message));
            }
            card.write(address, &data)?;
        }
        Ok(())
    }

    unsafe fn clear(&self, card: &SimDriver, _: &SimStream, address: u64, bytes: u64) -> Result<(), Error> {
        card.write(address, &vec![0; bytes as usize])
    }

    unsafe fn write(&self, card: &SimDriver, _: &SimStream, address: u64, bytes: &[u8]) -> Result<(), Error> {
        card.write(address, bytes)
    }

    unsafe fn copy(
        &self,
        card: &SimDriver,
        _: &SimStream,
        from: Rows,
        to: Rows,
        [rows, bytes]: [u64; 2],
    ) -> Result<(), Error> {
        let mut row = vec![0; bytes as usize];
        (0..rows).try_for_each(|index| {
            card.read(from.address + index * from.apart, &mut row)?;
            card.write(to.address + index * to.apart, &row)
        })
    }
}
