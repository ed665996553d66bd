//! Appends to KV caches and merges of partial states, in cudarc's slices.
use super::front::FlashAttention;
use super::memory::{MemoryMut, Slice, StreamGuards};
use super::views::{Append, State, Tensor, TensorMut};
use crate::Error;
use crate::request::{self, LseView, Merge, Sinks, TensorView};
use ::cudarc::driver::CudaStream;
use std::sync::Arc;

impl FlashAttention {
    /// Writes new keys and values to a KV cache, as the [request](request::Append) says: rotated or not, to a
    /// latent cache or not. Allocates nothing.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    #[doc(alias = "reshape_and_cache")]
    #[doc(alias = "reshape_and_cache_flash")]
    #[doc(alias = "concat_and_cache_mla")]
    #[doc(alias = "rotary_embedding")]
    #[doc(alias = "apply_rope_with_cos_sin_cache")]
    pub fn append(&self, stream: &Arc<CudaStream>, append: Append<'_>) -> Result<(), Error> {
        let mut guards = StreamGuards::on(self, stream)?;
        let append = append.on(&mut guards)?;
        let plan = self.attention.plan(&append)?;
        // SAFETY: `guards` holds every buffer of the request for this stream.
        unsafe { guards.launch(&plan, &append) }
    }

    /// Merges partial states of equal queries and different keys, like [`Merge`]. `sinks` are attention
    /// sinks, one per head. `lse` receives the log-sum-exp of each row, `[batch, heads, seqlen]`, natural and
    /// contiguous. Allocates nothing.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    #[doc(alias = "merge_attn_states")]
    pub fn merge<const N: usize>(
        &self,
        stream: &Arc<CudaStream>,
        states: &[State<'_>; N],
        sinks: Option<Sinks<Slice<'_>>>,
        o: TensorMut<'_>,
        lse: Option<&mut dyn MemoryMut<f32>>,
    ) -> Result<(), Error> {
        /// A place without memory.
        const NOWHERE: request::State = request::State::new(
            TensorView::new(0, 0, crate::DType::F32, [0; 4], [0; 4]),
            LseView::new(0, 0, [0; 3], [0; 2]),
        );
        let mut guards = StreamGuards::on(self, stream)?;
        let (mut of_states, mut views) = ([const { None }; N], [NOWHERE; N]);
        for ((state, view), place) in states.iter().zip(&mut views).zip(&mut of_states) {
            let mut guards = StreamGuards::on(self, stream)?;
            *view = state.on(&mut guards)?;
            *place = Some(guards);
        }
        let lse = lse.map(|lse| LseView::of(lse, o.shape));
        let mut merge = Merge::new(&views, o.on(&mut guards, "o")?);
        merge.lse = lse.map(|lse| lse.on(&mut guards, "lse")).transpose()?;
        merge.sinks = sinks.map(|sinks| sinks.on(&mut guards, "sinks")).transpose()?;
        let plan = self.attention.plan(&merge)?;
        // SAFETY: `guards` and those of the states hold every buffer of the request for this stream.
        unsafe { guards.launch(&plan, &merge) }
    }
}

impl<'a> request::State<Slice<'a>> {
    /// Creates a state: O, `[batch, seqlen, heads, head_dim]`, and its LSE, f32, natural and contiguous
    /// `[batch, heads, seqlen]`.
    pub fn of(o: Tensor<'a>, lse: Slice<'a>) -> Self {
        let [batch, seqlen, heads, _] = o.shape;
        State::new(o, LseView::contiguous(lse, u64::MAX, [batch, heads, seqlen]))
    }
}
