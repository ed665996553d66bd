//! The driver's state: devices, contexts, objects, calls and faults.
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, Mutex, PoisonError};

/// A `CUresult`.
pub type Code = u32;

/// Number of devices.
pub const DEVICES: i32 = 2;

/// The reason why a call fails.
pub struct Refusal {
    pub code: Code,
    pub words: String,
}

/// Refuses a call with `CUDA_ERROR_INVALID_VALUE`, `.._CONTEXT`, `.._HANDLE`, ..
pub fn refuse<T>(code: Code, words: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { code, words: words.into() })
}

/// `CUDA_ERROR_INVALID_VALUE`.
pub const INVALID_VALUE: Code = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: Code = 2;
/// `CUDA_ERROR_INVALID_DEVICE`.
pub const INVALID_DEVICE: Code = 101;
/// `CUDA_ERROR_INVALID_IMAGE`.
pub const INVALID_IMAGE: Code = 200;
/// `CUDA_ERROR_INVALID_CONTEXT`.
pub const INVALID_CONTEXT: Code = 201;
/// `CUDA_ERROR_INVALID_HANDLE`.
pub const INVALID_HANDLE: Code = 400;
/// `CUDA_ERROR_NOT_FOUND`.
pub const NOT_FOUND: Code = 500;
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
pub const CAPTURING: Code = 900;

/// The kind of object behind a handle.
#[derive(Debug, PartialEq)]
pub enum Kind {
    /// A module, with its image.
    Module(Vec<u8>),
    /// A function of a module.
    Function {
        module: usize,
        name: String,
    },
    /// A stream, and whether it captures.
    Stream {
        capturing: bool,
    },
    Event,
    Graph,
    Exec,
    /// Device memory, with its content.
    Memory(Vec<u128>, usize),
}

impl Kind {
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Module(_) => "module",
            Kind::Function { .. } => "function",
            Kind::Stream { .. } => "stream",
            Kind::Event => "event",
            Kind::Graph => "graph",
            Kind::Exec => "launchable graph",
            Kind::Memory(..) => "memory",
        }
    }
}

/// An object, and the context in which it was made.
pub struct Object {
    pub kind: Kind,
    pub context: usize,
}

/// The driver's state, except the contexts of each thread.
pub struct State {
    /// The version that `cuDriverGetVersion` returns, for example 13000 for 13.0.
    pub version: i32,
    /// Objects by handle.
    pub objects: BTreeMap<usize, Object>,
    /// Retain count of each primary context.
    pub retained: [u32; DEVICES as usize],
    pub calls: Vec<String>,
    pub faults: Vec<String>,
    /// The functions of which the next call must fail.
    pub failing: BTreeSet<String>,
    handles: usize,
}

impl Default for State {
    fn default() -> Self {
        let (objects, failing) = (BTreeMap::new(), BTreeSet::new());
        let (retained, calls, faults) = ([0; DEVICES as usize], vec![], vec![]);
        State { version: 13_000, objects, retained, calls, faults, failing, handles: 0 }
    }
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

thread_local! {
    /// The thread's stack of contexts. The current context is the last one.
    static CONTEXTS: RefCell<Vec<usize>> = const { RefCell::new(vec![]) };
}

/// Calls `body` with the state.
pub fn with<T>(body: impl FnOnce(&mut State) -> T) -> T {
    body(&mut STATE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Calls `body` with the thread's stack of contexts.
pub fn contexts<T>(body: impl FnOnce(&mut Vec<usize>) -> T) -> T {
    CONTEXTS.with_borrow_mut(body)
}

/// Returns the primary context of a device.
pub fn primary(device: i32) -> usize {
    0xc00 + device as usize
}

/// Runs the body of a driver function. Records the call, and its fault if it fails.
pub fn call(name: &str, body: impl FnOnce(&mut State) -> Result<(), Refusal>) -> Code {
    with(|state| {
        state.calls.push(name.into());
        if state.failing.remove(name) {
            return OUT_OF_MEMORY;
        }
        match body(state) {
            Ok(()) => 0,
            Err(Refusal { code, words }) => {
                state.faults.push(format!("{name}: {words}"));
                code
            }
        }
    })
}

impl State {
    /// Returns the thread's current context. The context must be retained.
    pub fn current(&self) -> Result<usize, Refusal> {
        let Some(context) = contexts(|all| all.last().copied()) else {
            return refuse(INVALID_CONTEXT, "no context is current");
        };
        if (0..DEVICES).any(|device| primary(device) == context && self.retained[device as usize] > 0) {
            return Ok(context);
        }
        refuse(INVALID_CONTEXT, format!("nobody holds the current context {context:#x}"))
    }

    /// Makes an object of the current context.
    pub fn make(&mut self, kind: Kind) -> Result<usize, Refusal> {
        let context = self.current()?;
        self.handles += 1;
        let handle = 0x1000 + self.handles * 0x10;
        self.objects.insert(handle, Object { kind, context });
        Ok(handle)
    }

    /// Returns the object with this handle, which must have this kind.
    pub fn object(&mut self, handle: usize, name: &str) -> Result<&mut Object, Refusal> {
        match self.objects.get_mut(&handle) {
            Some(object) if object.kind.name() == name => Ok(object),
            _ => refuse(INVALID_HANDLE, format!("{handle:#x} is no {name}")),
        }
    }

    /// Returns the object with this handle, which must have this kind and belong to the current context.
    pub fn own(&mut self, handle: usize, name: &str) -> Result<&mut Object, Refusal> {
        let current = self.current()?;
        let object = self.object(handle, name)?;
        if object.context != current {
            let words = format!("{name} of context {:#x} in context {current:#x}", object.context);
            return refuse(INVALID_CONTEXT, words);
        }
        Ok(object)
    }

    /// Removes an object.
    pub fn destroy(&mut self, handle: usize, name: &str) -> Result<(), Refusal> {
        self.object(handle, name)?;
        self.objects.remove(&handle);
        Ok(())
    }
}
