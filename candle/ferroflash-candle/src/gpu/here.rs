//! The state of each device: loaded kernels, and the scratch memory of each stream.
use crate::errors::refused;
use candle::Result;
use candle::cuda_backend::cudarc::driver::{CudaContext, CudaStream};
use ferroflash::cudarc::{FlashAttention, ScratchMemory};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// Scratch memory of streams, by the address of the stream. Scratch memory keeps its stream alive, so no
/// other stream gets this address.
type Scratches = HashMap<usize, Arc<Mutex<ScratchMemory>>>;

/// `CU_STREAM_PER_THREAD`: candle's devices compute on this stream, which is another stream in each thread.
const PER_THREAD: usize = 2;

thread_local! {
    /// This thread's scratch memory of per-thread streams.
    static OWN: RefCell<Scratches> = RefCell::default();
}

/// Attention on one context, and the scratch memory of its streams.
pub(crate) struct Here {
    pub attention: FlashAttention,
    scratches: Mutex<Scratches>,
}

impl Here {
    /// Returns the state of a stream's context. State and context live until the process ends.
    pub fn of(stream: &CudaStream) -> Result<Arc<Here>> {
        static ALL: LazyLock<Mutex<HashMap<usize, Arc<Here>>>> = LazyLock::new(Mutex::default);
        let context: &Arc<CudaContext> = stream.context();
        let key = Arc::as_ptr(context) as usize;
        let mut all = lock(&ALL);
        if let Some(here) = all.get(&key) {
            return Ok(Arc::clone(here));
        }
        let attention = FlashAttention::new(context).map_err(refused)?;
        let here = Arc::new(Here { attention, scratches: Mutex::default() });
        // The state holds the context, so that no other context gets this address.
        all.insert(key, Arc::clone(&here));
        Ok(here)
    }

    /// Returns the scratch memory of a stream, which all launches of the stream share.
    pub fn scratch(&self, stream: &Arc<CudaStream>) -> Arc<Mutex<ScratchMemory>> {
        let key = Arc::as_ptr(stream) as usize;
        let of = |scratches: &mut Scratches| Arc::clone(scratches.entry(key).or_default());
        match stream.cu_stream() as usize {
            PER_THREAD => OWN.with_borrow_mut(of),
            _ => of(&mut lock(&self.scratches)),
        }
    }
}

/// Locks a mutex, also after a panic. One call writes each protected value, so no value is ever half written.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
