//! Append: new keys and values in cudarc's slices, for a KV cache there.
use super::memory::{Memory, SlotNumber, Taken};
use super::{Element, FlashAttention, Number, PagesMut, Tensor};
use crate::Error;
use crate::request::{Append, Slots};
use ::cudarc::driver::CudaStream;
use std::sync::Arc;

impl FlashAttention {
    /// Writes `k` and `v`, `[1, tokens, heads, head_dim]`, into a KV cache by slot mapping ([`Append`]).
    /// Token `t` goes to row `slots[t] % page` of page `slots[t] / page`; the kernel skips a slot that the KV
    /// cache lacks. A KV cache of `u8` stores e4m3, rounded from `x / scale`. Allocates nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] and [`Error::Unsupported`] name the invalid field; [`Error::Driver`] if the driver
    /// fails.
    #[doc(alias = "reshape_and_cache")]
    #[doc(alias = "reshape_and_cache_flash")]
    pub fn append<T: Element, C: Number, N: SlotNumber>(
        &self,
        stream: &Arc<CudaStream>,
        k: Tensor<'_, T>,
        v: Tensor<'_, T>,
        pages: PagesMut<'_, C>,
        slots: &impl Memory<N>,
    ) -> Result<(), Error> {
        let mut taken: Taken<'_> = Taken::on(self, stream)?;
        let (k, v) = (k.on(&mut taken, "k")?, v.on(&mut taken, "v")?);
        let (address, elements) = taken.read("slots", slots)?;
        let slots = Slots { address, elements, wide: N::WIDE };
        let append = Append::new(k, v, pages.on(&mut taken)?, slots);
        let plan = self.attention.plan(&append)?;
        // SAFETY: all buffers of the request were taken.
        unsafe { self.launch(&plan, &append, stream) }
    }
}
