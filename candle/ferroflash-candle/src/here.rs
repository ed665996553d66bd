//! What the crate keeps of a device: its kernels, and for each stream the memory that launches use beside
//! their tensors.
use crate::errors::refused;
use candle::Result;
use candle::cuda_backend::cudarc::driver::{CudaContext, CudaStream};
use ferroflash::cudarc::{FlashAttention, Room};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// Rooms by the addresses of their streams. One that has memory holds its stream, so that no other one comes
/// to lie at this address.
type Rooms = HashMap<usize, Arc<Mutex<Room>>>;

/// The handle of a stream that is another one in each thread: what candle's devices compute on.
const PER_THREAD: usize = 2;

thread_local! {
    /// This thread's rooms of such streams.
    static OWN: RefCell<Rooms> = RefCell::default();
}

/// Attention on one context, and its streams' rooms.
pub(crate) struct Here {
    pub attention: FlashAttention,
    rooms: Mutex<Rooms>,
}

impl Here {
    /// That of a stream's context. They and the context stay until the process ends.
    pub fn of(stream: &CudaStream) -> Result<Arc<Here>> {
        static ALL: LazyLock<Mutex<HashMap<usize, Arc<Here>>>> = LazyLock::new(Mutex::default);
        let context: &Arc<CudaContext> = stream.context();
        let key = Arc::as_ptr(context) as usize;
        let mut all = lock(&ALL);
        if let Some(here) = all.get(&key) {
            return Ok(Arc::clone(here));
        }
        let attention = FlashAttention::new(context).map_err(refused)?;
        let here = Arc::new(Here { attention, rooms: Mutex::default() });
        // It holds the context, so that no other one comes to lie at this address.
        all.insert(key, Arc::clone(&here));
        Ok(here)
    }

    /// The room of a stream: work of one stream follows each other, so that all of it may share one.
    pub fn room(&self, stream: &Arc<CudaStream>) -> Arc<Mutex<Room>> {
        let key = Arc::as_ptr(stream) as usize;
        let of = |rooms: &mut Rooms| Arc::clone(rooms.entry(key).or_default());
        match stream.cu_stream() as usize {
            PER_THREAD => OWN.with_borrow_mut(of),
            _ => of(&mut lock(&self.rooms)),
        }
    }
}

/// Who panicked with the lock left nothing half done: what is kept is written by one call.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
