//! Scratch memory of launches.
use super::{FlashAttention, memory::Taken, refused};
use crate::Error;
use crate::request::{Counters, Scratch, Workspace};
use ::cudarc::driver::{CudaSlice, CudaStream};
use std::sync::Arc;

/// Scratch memory of launches: a workspace for the partial results of splits, and counters that elect the
/// last split. Any requests may share it in the order of one stream. For concurrent work on several streams,
/// use one room per stream.
#[derive(Default)]
pub struct Room {
    workspace: Option<CudaSlice<u8>>,
    /// All zero before and after each launch.
    counters: Option<CudaSlice<u32>>,
    /// Whether a graph may use its memory; the memory is then never freed.
    captured: bool,
}

impl Room {
    /// An empty room. Requests without splits need none.
    pub fn new() -> Self {
        Self::default()
    }

    /// Its bytes: workspace, and counters.
    pub fn bytes(&self) -> [u64; 2] {
        let bytes = |bytes: Option<usize>| bytes.unwrap_or(0) as u64;
        let Room { workspace, counters, .. } = self;
        [
            bytes(workspace.as_ref().map(CudaSlice::num_bytes)),
            bytes(counters.as_ref().map(CudaSlice::num_bytes)),
        ]
    }

    /// Grows to the needed size, in the order of a stream.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the stream captures a graph, because the graph would own the memory.
    pub(super) fn grow(
        &mut self,
        attention: &FlashAttention,
        stream: &Arc<CudaStream>,
        capturing: bool,
        wanted: [u64; 2],
    ) -> Result<(), Error> {
        self.workspace.as_ref().map_or(Ok(()), |workspace| attention.is_here("room", workspace.stream()))?;
        let ([workspace, counters], [more, more_counters]) = (self.bytes(), wanted);
        let [grows, counts] = [workspace < more, counters < more_counters];
        if capturing && (grows || counts) {
            let feature = format_args!("a room of {workspace} and {counters} bytes that grows in a capture");
            let reason = format_args!(
                "it must have {more} and {more_counters} before: run once, or FlashAttention::reserve"
            );
            return Err(Error::unsupported(feature, reason));
        }
        if grows {
            // SAFETY: its contents mean nothing before a launch.
            let grown = unsafe { stream.alloc(more as usize) };
            let old = self.workspace.replace(grown.map_err(refused("alloc"))?);
            self.give_back(old);
        }
        if counts {
            let grown = stream.alloc_zeros((more_counters / 4) as usize);
            let old = self.counters.replace(grown.map_err(refused("alloc"))?);
            self.give_back(old);
        }
        Ok(())
    }

    /// Its memory, taken for a stream.
    pub(super) fn on<'t, 'a: 't, const MOST: usize>(
        &'a mut self,
        taken: &mut Taken<'t, MOST>,
    ) -> Result<Scratch, Error> {
        self.captured |= taken.capturing;
        let Room { workspace, counters, .. } = self;
        let workspace = workspace.as_mut().map(|workspace| taken.write("room", workspace)).transpose()?;
        let counters = counters.as_mut().map(|counters| taken.write("room", counters)).transpose()?;
        let counters = counters.map(|(address, count)| Counters { address, bytes: count * 4 });
        Ok(workspace.map_or(Scratch::None, |(address, bytes)| Scratch::Memory {
            workspace: Workspace { address, bytes },
            counters,
        }))
    }

    /// Frees old memory, unless a graph may use it.
    fn give_back<T>(&self, old: Option<CudaSlice<T>>) {
        if self.captured {
            std::mem::forget(old);
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let (workspace, counters) = (self.workspace.take(), self.counters.take());
        self.give_back(workspace);
        self.give_back(counters);
    }
}
