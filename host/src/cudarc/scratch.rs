//! Scratch memory of launches.
use super::front::{FlashAttention, refused};
use super::memory::{SliceMut, StreamGuards};
use crate::Error;
use crate::plan::ScratchBytes;
use crate::request::{Region, Resolve, Scratch};
use ::cudarc::driver::{CudaSlice, CudaStream};
use std::sync::Arc;

/// Scratch memory of launches. It holds the partial results of splits, and counters. The counters elect the
/// thread block that combines the splits. Keep one `ScratchMemory` per stream, and use it for all requests of
/// that stream. [`FlashAttention::attend`] grows it as needed.
#[derive(Default)]
pub struct ScratchMemory {
    workspace: Option<CudaSlice<u8>>,
    /// The counters. All counters are zero before and after each launch.
    counters: Option<CudaSlice<u32>>,
    /// Whether a graph may use the memory. This crate never frees such memory.
    pub(super) captured: bool,
}

impl ScratchMemory {
    /// Creates empty scratch memory. Kernels without splits need no scratch memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Allocates scratch memory of one launch, without counters.
    pub(super) fn alone(stream: &Arc<CudaStream>, bytes: u64) -> Result<Self, Error> {
        // SAFETY: the launch reads nothing that it has not written.
        let workspace = (bytes > 0).then(|| unsafe { stream.alloc(bytes as usize) }).transpose();
        let workspace = workspace.map_err(refused("alloc"))?;
        Ok(ScratchMemory { workspace, counters: None, captured: false })
    }

    /// Returns the size of the memory.
    pub fn bytes(&self) -> ScratchBytes {
        let bytes = |bytes: Option<usize>| bytes.unwrap_or(0) as u64;
        let workspace = bytes(self.workspace.as_ref().map(CudaSlice::num_bytes));
        let counters = bytes(self.counters.as_ref().map(CudaSlice::num_bytes));
        ScratchBytes { workspace, counters }
    }

    /// Grows the memory to the needed size, in the order of a stream. `remedy` says how the memory grows
    /// before a capture.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the stream captures a graph, which would own the memory.
    pub(super) fn grow(
        &mut self,
        attention: &FlashAttention,
        stream: &Arc<CudaStream>,
        needed: ScratchBytes,
        remedy: &str,
    ) -> Result<(), Error> {
        let workspace = self.workspace.as_ref();
        workspace.map_or(Ok(()), |workspace| attention.is_here("scratch", workspace.stream()))?;
        let has = self.bytes();
        let [grows, counts] = [has.workspace < needed.workspace, has.counters < needed.counters];
        if (grows || counts) && attention.is_capturing(stream)? {
            let feature = format_args!(
                "scratch memory of {} and {} bytes that grows while the stream captures a graph",
                has.workspace, has.counters
            );
            let reason =
                format_args!("the launch needs {} and {} bytes; {remedy}", needed.workspace, needed.counters);
            return Err(Error::unsupported(feature, reason));
        }
        if grows {
            // SAFETY: a launch does not read the old contents.
            let grown = unsafe { stream.alloc(needed.workspace as usize) };
            let old = self.workspace.replace(grown.map_err(refused("alloc"))?);
            self.give_back(old);
        }
        if counts {
            let grown = stream.alloc_zeros((needed.counters / 4) as usize);
            let old = self.counters.replace(grown.map_err(refused("alloc"))?);
            self.give_back(old);
        }
        Ok(())
    }

    /// Returns the memory for a launch, in the order of a stream.
    pub(super) fn on<'t, 'a: 't>(&'a mut self, guards: &mut StreamGuards<'t>) -> Result<Scratch, Error> {
        self.captured |= guards.capturing;
        let ScratchMemory { workspace, counters, .. } = self;
        let Some(workspace) = workspace else { return Ok(Scratch::None) };
        let mut region = |memory| {
            let (address, bytes) = guards.resolve("scratch", memory, 1)?;
            Ok::<_, Error>(Region { address, bytes })
        };
        let workspace = region(SliceMut::new(workspace))?;
        let counters = counters.as_mut().map(|counters| region(SliceMut::new(counters))).transpose()?;
        Ok(Scratch::Memory { workspace, counters })
    }

    /// Frees memory that is no longer used, unless a graph may use it.
    fn give_back<T>(&self, old: Option<CudaSlice<T>>) {
        if self.captured {
            std::mem::forget(old);
        }
    }
}

impl Drop for ScratchMemory {
    fn drop(&mut self) {
        let (workspace, counters) = (self.workspace.take(), self.counters.take());
        self.give_back(workspace);
        self.give_back(counters);
    }
}
