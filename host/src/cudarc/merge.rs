//! Merge of partial attention states in cudarc's slices.
use super::attention::lse;
use super::front::FlashAttention;
use super::memory::{Element, Memory, MemoryMut, Number, StreamGuards};
use super::tensor::{Tensor, TensorMut};
use crate::Error;
use crate::request::{self, LseUnit, LseView, Merge, Sinks, TensorView};
use ::cudarc::driver::CudaStream;
use std::sync::Arc;

/// A partial state: attention over some of the keys ([`request::State`]) in cudarc's slices. Elements are
/// f16, bf16 or f32.
#[derive(Clone, Copy)]
#[must_use]
pub struct State<'a, S> {
    o: Tensor<'a, S>,
    lse: &'a dyn Memory<f32>,
    strides: Option<[i64; 3]>,
    unit: LseUnit,
}

impl<'a, S: Number> State<'a, S> {
    /// Creates a state: O, `[batch, seqlen, heads, head_dim]`, and its LSE, natural and contiguous `[batch,
    /// heads, seqlen]`.
    pub fn new(o: Tensor<'a, S>, lse: &'a impl Memory<f32>) -> Self {
        State { o, lse, strides: None, unit: LseUnit::Natural }
    }

    /// Sets the strides of the LSE, in elements: from one batch to the next batch, from one head to the next
    /// head, and from one row to the next row.
    pub fn lse_strides(self, strides: [i64; 3]) -> Self {
        State { strides: Some(strides), ..self }
    }

    /// Sets the unit of the LSE.
    pub fn unit(self, unit: LseUnit) -> Self {
        State { unit, ..self }
    }

    /// A placeholder without memory.
    const NOWHERE: request::State = request::State::new(
        TensorView::new(0, 0, S::DTYPE, [0; 4], [0; 4]),
        LseView::new(0, 0, [0; 3], [0; 2]),
    );

    fn on(&self, guards: &mut StreamGuards<'a, 2>) -> Result<request::State, Error> {
        let [batch, seqlen, heads, _] = self.o.shape;
        let o = self.o.on(guards, "states.o")?;
        let (address, elements) = guards.read("states.lse", self.lse)?;
        let contiguous = LseView::contiguous(address, elements, [batch, heads, seqlen]);
        let lse = self.strides.map_or(contiguous, |[batch, head, row]| LseView {
            strides: [batch, head],
            row_stride: row,
            ..contiguous
        });
        Ok(request::State::new(o, lse.unit(self.unit)))
    }
}

impl FlashAttention {
    /// vLLM's `merge_attn_states`: merges attention over a prefix's keys with attention over the suffix's
    /// keys. Outputs are `[1, tokens, heads, head_dim]`. LSEs are `[heads, tokens]`, natural and contiguous.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::merge`].
    #[expect(clippy::too_many_arguments, reason = "they are vLLM's")]
    pub fn merge_attn_states<T: Element, S: Number>(
        &self,
        stream: &Arc<CudaStream>,
        output: TensorMut<'_, T>,
        prefix_output: Tensor<'_, S>,
        prefix_lse: &impl Memory<f32>,
        suffix_output: Tensor<'_, S>,
        suffix_lse: &impl Memory<f32>,
        output_lse: Option<&mut dyn MemoryMut<f32>>,
    ) -> Result<(), Error> {
        let states = [State::new(prefix_output, prefix_lse), State::new(suffix_output, suffix_lse)];
        self.merge(stream, &states, None, output, output_lse)
    }

    /// Merges partial states of equal queries and different keys, like [`Merge`]. `sinks` are attention
    /// sinks, one per head. `lse` receives the log-sum-exp of each row, `[batch, heads, seqlen]`, natural and
    /// contiguous. Allocates nothing.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    pub fn merge<T: Number, S: Number, const N: usize>(
        &self,
        stream: &Arc<CudaStream>,
        states: &[State<'_, S>; N],
        sinks: Option<&dyn Memory<f32>>,
        o: TensorMut<'_, T>,
        lse: Option<&mut dyn MemoryMut<f32>>,
    ) -> Result<(), Error> {
        let mut guards: StreamGuards<'_, 3> = StreamGuards::on(self, stream)?;
        let (mut of_states, mut views) = ([const { None }; N], [State::<S>::NOWHERE; N]);
        for ((state, view), place) in states.iter().zip(&mut views).zip(&mut of_states) {
            let mut guards: StreamGuards<'_, 2> = StreamGuards::on(self, stream)?;
            *view = state.on(&mut guards)?;
            *place = Some(guards);
        }
        let shape = o.shape;
        let o = o.on(&mut guards, "o")?;
        let lse = self::lse(&mut guards, lse, shape)?;
        let mut merge = Merge { lse, ..Merge::new(&views, o) };
        if let Some(sinks) = sinks {
            let (address, elements) = guards.read("sinks", sinks)?;
            merge.sinks = Some(Sinks { address, elements });
        }
        let plan = self.attention.plan(&merge)?;
        // SAFETY: `guards` holds every buffer of the request for this stream.
        unsafe { guards.launch(&plan, &merge) }
    }
}
