//! Append: writes new keys and values to a KV cache. Keys, values, slots and the KV cache are cudarc's
//! slices.
use super::cache::PagesMut;
use super::front::FlashAttention;
use super::memory::{Element, Memory, Number, SlotNumber, StreamGuards};
use super::tensor::Tensor;
use crate::Error;
use crate::request::{Append, Slots};
use ::cudarc::driver::CudaStream;
use std::sync::Arc;

impl FlashAttention {
    /// Writes `k` and `v`, `[1, tokens, heads, head_dim]`, to a KV cache, like [`Append`]. Token `t` goes to
    /// row `slots[t] % page` of page `slots[t] / page`. The kernel skips slots outside the cache. A cache of
    /// `u8` stores `x / scale` as e4m3. A cache of `i8` stores integers and the scale of each row
    /// ([`PagesMut::token_scales`]). Allocates nothing.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
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
        let mut guards: StreamGuards<'_> = StreamGuards::on(self, stream)?;
        let append = at_tokens(&mut guards, k, v, pages, slots)?;
        let plan = self.attention.plan(&append)?;
        // SAFETY: `guards` holds every buffer of the request for this stream.
        unsafe { guards.launch(&plan, &append) }
    }

    /// Writes `rows`, `[1, tokens, 1, head_dim]`, to a latent cache ([`PagesMut::latent`]), like
    /// [`Append::latent`]. See [`FlashAttention::append`] for slots. Allocates nothing.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    #[doc(alias = "concat_and_cache_mla")]
    pub fn append_latent<T: Element, N: SlotNumber>(
        &self,
        stream: &Arc<CudaStream>,
        rows: Tensor<'_, T>,
        pages: PagesMut<'_, T>,
        slots: &impl Memory<N>,
    ) -> Result<(), Error> {
        let mut guards: StreamGuards<'_> = StreamGuards::on(self, stream)?;
        let append = latent(&mut guards, rows, pages, slots)?;
        let plan = self.attention.plan(&append)?;
        // SAFETY: `guards` holds every buffer of the request for this stream.
        unsafe { guards.launch(&plan, &append) }
    }
}

/// Returns the append of keys and values. `guards` holds their memory.
pub(super) fn at_tokens<'t, 'p: 't, T: Element, C: Number, N: SlotNumber + 't, const MOST: usize>(
    guards: &mut StreamGuards<'t, MOST>,
    k: Tensor<'t, T>,
    v: Tensor<'t, T>,
    pages: PagesMut<'p, C>,
    slots: &'t impl Memory<N>,
) -> Result<Append, Error> {
    let (k, v) = (k.on(guards, "k")?, v.on(guards, "v")?);
    let slots = on(guards, slots)?;
    Ok(Append::new(k, v, pages.on(guards)?, slots))
}

/// Returns the append to a latent cache. `guards` holds the memory.
pub(super) fn latent<'t, 'p: 't, T: Element, N: SlotNumber + 't, const MOST: usize>(
    guards: &mut StreamGuards<'t, MOST>,
    rows: Tensor<'t, T>,
    pages: PagesMut<'p, T>,
    slots: &'t impl Memory<N>,
) -> Result<Append, Error> {
    let rows = rows.on(guards, "rows")?;
    let slots = on(guards, slots)?;
    let pages = pages.on(guards)?;
    if pages.latent_columns().is_none() {
        let expected = "a latent cache has no separate values; use PagesMut::latent";
        return Err(Error::invalid("cache.values.shape", format!("{:?}", pages.values.shape), expected));
    }
    Ok(Append::latent(rows, pages, slots))
}

fn on<'t, N: SlotNumber + 't, const MOST: usize>(
    guards: &mut StreamGuards<'t, MOST>,
    slots: &'t impl Memory<N>,
) -> Result<Slots, Error> {
    let (address, elements) = guards.read("slots", slots)?;
    Ok(Slots { address, elements, wide: N::WIDE })
}
