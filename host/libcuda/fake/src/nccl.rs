//! NCCL, for programs with a process per rank. Ranks are processes, and messages are files of a folder, whose
//! path is the identity of the communicator. A communicator never blocks. A rank whose process has ended is a
//! remote error, as with NCCL's sockets.
//!
//! A receive of another size than the message is a fault. NCCL would wait, or write beyond the memory.
use crate::api::{Out, Text};
use crate::state::{self, Refusal};
use std::ffi::{c_char, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// An `ncclResult_t`.
type Code = c_int;
const SUCCESS: Code = 0;
const SYSTEM_ERROR: Code = 2;
const INVALID_ARGUMENT: Code = 4;
const INVALID_USAGE: Code = 5;
const REMOTE_ERROR: Code = 6;
const IN_PROGRESS: Code = 7;

/// A communicator.
struct Rank {
    folder: PathBuf,
    rank: usize,
    ranks: usize,
    /// Messages until now, to and from each rank.
    sent: Vec<usize>,
    received: Vec<usize>,
    /// Receives whose message has not come: rank, number, address and bytes.
    pending: Vec<(usize, usize, u64, usize)>,
    error: Code,
}

/// Communicators by handle, less 1, and the sends and receives of an open group.
struct All {
    ranks: Vec<Option<Rank>>,
    depth: usize,
    group: Vec<Operation>,
}

struct Operation {
    comm: usize,
    is_send: bool,
    address: u64,
    bytes: usize,
    peer: usize,
}

static ALL: Mutex<All> = Mutex::new(All { ranks: Vec::new(), depth: 0, group: Vec::new() });

fn with<T>(body: impl FnOnce(&mut All) -> T) -> T {
    body(&mut ALL.lock().unwrap_or_else(PoisonError::into_inner))
}

/// An `ncclUniqueId`: the path of the folder, up to its NUL.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Id([c_char; 128]);

/// `ncclConfig_t` of NCCL 2.14.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

impl Rank {
    fn joined(&self, rank: usize) -> PathBuf {
        self.folder.join(format!("rank-{rank}"))
    }

    /// Returns whether a rank has joined and its process has ended.
    fn has_ended(&self, rank: usize) -> bool {
        let process = fs::read_to_string(self.joined(rank)).unwrap_or_default();
        !process.is_empty() && !Path::new("/proc").join(process).exists()
    }

    fn message(&self, from: usize, to: usize, number: usize) -> PathBuf {
        self.folder.join(format!("{from}-{to}-{number}"))
    }

    /// Writes a message, which becomes visible as a whole.
    fn send(&mut self, of: &Operation) -> Result<(), Code> {
        let path = self.message(self.rank, of.peer, self.sent[of.peer]);
        self.sent[of.peer] += 1;
        let data = state::with(|state| state.copy(of.address, of.bytes)).map_err(|_| INVALID_ARGUMENT)?;
        let unfinished = path.with_extension("unfinished");
        fs::write(&unfinished, data).and_then(|()| fs::rename(unfinished, path)).map_err(|_| SYSTEM_ERROR)
    }

    /// Receives what has come. Returns the state of the communicator.
    fn progress(&mut self) -> Code {
        if self.error != SUCCESS {
            return self.error;
        }
        if !(0..self.ranks).all(|rank| self.joined(rank).exists()) {
            return IN_PROGRESS;
        }
        for (from, number, address, bytes) in std::mem::take(&mut self.pending) {
            let path = self.message(from, self.rank, number);
            // A rank may end behind its last message.
            let has_ended = self.has_ended(from);
            match fs::read(&path) {
                Ok(data) => {
                    let _ = fs::remove_file(path);
                    let write = || {
                        if data.len() != bytes {
                            let words =
                                format!("{bytes} bytes of rank {from}, which has sent {}", data.len());
                            return state::refuse(state::INVALID_VALUE, words);
                        }
                        state::with(|state| state.write(address, data.as_ptr(), bytes))
                    };
                    if fault("ncclRecv", write()) != SUCCESS {
                        self.error = INVALID_USAGE;
                    }
                }
                Err(_) if has_ended => self.error = REMOTE_ERROR,
                Err(_) => self.pending.push((from, number, address, bytes)),
            }
        }
        match (self.error, self.pending.is_empty()) {
            (SUCCESS, false) => IN_PROGRESS,
            (error, _) => error,
        }
    }
}

/// Records the fault of a function.
fn fault(name: &str, outcome: Result<(), Refusal>) -> Code {
    let Err(Refusal { words, .. }) = outcome else { return SUCCESS };
    state::with(|state| state.faults.push(format!("{name}: {words}")));
    eprintln!("{name}: {words}");
    INVALID_ARGUMENT
}

/// Calls `body` with a communicator.
fn of(comm: usize, body: impl FnOnce(&mut Rank) -> Code) -> Code {
    with(|all| match all.ranks.get_mut(comm.wrapping_sub(1)) {
        Some(Some(rank)) => body(rank),
        _ => fault("nccl", state::refuse(state::INVALID_HANDLE, format!("{comm:#x} is no communicator"))),
    })
}

fn set<T>(to: Out<T>, value: T) -> Code {
    fault("nccl", to.set(value))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetVersion(version: Out<c_int>) -> Code {
    set(version, 22_705)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(_code: Code) -> *const c_char {
    c"of a fake NCCL".as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetUniqueId(id: Out<Id>) -> Code {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("fake-nccl-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let folder = std::env::temp_dir().join(name);
    let text = folder.to_string_lossy().into_owned();
    if text.len() >= 128 || fs::create_dir_all(&folder).is_err() {
        return SYSTEM_ERROR;
    }
    let mut all = [0; 128];
    all.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte as c_char);
    set(id, Id(all))
}

/// # Safety
/// - `config` is null, or points to a config.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    comm: Out<usize>,
    ranks: c_int,
    id: Id,
    rank: c_int,
    config: *const Config,
) -> Code {
    // SAFETY: the caller promises a config.
    let is_known = unsafe { config.as_ref() }.is_some_and(|config| {
        (config.magic, config.blocking) == (0xcafe_beef, 0) && config.size >= 24 && config.version >= 21_400
    });
    if !is_known || rank < 0 || rank >= ranks {
        return INVALID_ARGUMENT;
    }
    let (rank, ranks) = (rank as usize, ranks as usize);
    let folder = PathBuf::from(Text::new(id.0.as_ptr()).get());
    let (sent, received) = (vec![0; ranks], vec![0; ranks]);
    let new = Rank { folder, rank, ranks, sent, received, pending: Vec::new(), error: SUCCESS };
    if fs::write(new.joined(rank), std::process::id().to_string()).is_err() {
        return SYSTEM_ERROR;
    }
    let handle = with(|all| {
        all.ranks.push(Some(new));
        all.ranks.len()
    });
    if set(comm, handle) == SUCCESS { IN_PROGRESS } else { INVALID_ARGUMENT }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommGetAsyncError(comm: usize, result: Out<Code>) -> Code {
    of(comm, |rank| set(result, rank.progress()))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> Code {
    with(|all| all.depth += 1);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> Code {
    with(|all| {
        let Some(depth) = all.depth.checked_sub(1) else { return INVALID_USAGE };
        all.depth = depth;
        for operation in if depth == 0 { std::mem::take(&mut all.group) } else { Vec::new() } {
            let Some(Some(rank)) = all.ranks.get_mut(operation.comm.wrapping_sub(1)) else {
                return INVALID_ARGUMENT;
            };
            if operation.is_send {
                if let Err(code) = rank.send(&operation) {
                    return code;
                }
            } else {
                let number = rank.received[operation.peer];
                rank.received[operation.peer] += 1;
                rank.pending.push((operation.peer, number, operation.address, operation.bytes));
            }
        }
        IN_PROGRESS
    })
}

fn enqueue(operation: Operation, dtype: c_int, stream: usize) -> Code {
    let name = if operation.is_send { "ncclSend" } else { "ncclRecv" };
    let checked = state::with(|state| {
        state.calls.push(format!("{name} {} bytes, rank {}", operation.bytes, operation.peer));
        state.object(stream, "stream")?;
        state.copy(operation.address, operation.bytes).map(|_| ())
    });
    let code = fault(name, checked);
    with(|all| {
        let rank = all.ranks.get(operation.comm.wrapping_sub(1)).and_then(Option::as_ref);
        // 1 is a byte.
        let is_right = dtype == 1 && all.depth > 0 && rank.is_some_and(|rank| operation.peer < rank.ranks);
        match (code, is_right) {
            (SUCCESS, true) => all.group.push(operation),
            (SUCCESS, false) => return INVALID_ARGUMENT,
            (code, _) => return code,
        }
        SUCCESS
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclSend(
    from: *const c_void,
    bytes: usize,
    dtype: c_int,
    to: c_int,
    comm: usize,
    stream: usize,
) -> Code {
    let address = from.addr() as u64;
    enqueue(Operation { comm, is_send: true, address, bytes, peer: to as usize }, dtype, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclRecv(
    to: *mut c_void,
    bytes: usize,
    dtype: c_int,
    from: c_int,
    comm: usize,
    stream: usize,
) -> Code {
    let address = to.addr() as u64;
    enqueue(Operation { comm, is_send: false, address, bytes, peer: from as usize }, dtype, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommFinalize(comm: usize) -> Code {
    of(comm, |_| SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(comm: usize) -> Code {
    with(|all| match all.ranks.get_mut(comm.wrapping_sub(1)).and_then(Option::take) {
        Some(_) => SUCCESS,
        None => INVALID_ARGUMENT,
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(comm: usize) -> Code {
    ncclCommDestroy(comm)
}
