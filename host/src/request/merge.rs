//! Merge of partial attention states.
use super::{LseView, Sinks, TensorView};

/// A partial state: attention over some of the keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    /// The partial O, normalised: `[batch, seqlen, heads, head_dim]`.
    pub o: TensorView,
    /// The partial LSE. A row that saw no key has `-inf`, or `+inf` as FlashAttention-2 writes it; the merge
    /// then ignores its O.
    pub lse: LseView,
}

impl State {
    /// Returns the state from one launch's outputs.
    pub const fn new(o: TensorView, lse: LseView) -> Self {
        State { o, lse }
    }
}

/// Merges states of the same queries and of different keys:
/// `o = sum of exp(lse[i]) o[i] / sum of exp(lse[i])`, in the order of the states, accumulated in f32. A row
/// that saw no key in any state gives O = 0 and LSE = `-inf`.
///
/// A single state may be merged with sinks. `o` and `lse` may be the tensors of a state.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "a description of a launch does nothing by itself; plan and launch it"]
#[non_exhaustive]
pub struct Merge<'a> {
    /// The states, at least one: f16, bf16 or f32, with one shape, one dtype and one logarithm. States from
    /// the second on have equal strides and lie at equal distances.
    pub states: &'a [State],
    /// Output: the states' dtype, or f16 or bf16 for f32 states. The kernel writes all of it. It must not
    /// overlap another tensor, except its own state.
    pub o: TensorView,
    /// Output of the LSE over all keys, with either logarithm.
    pub lse: Option<LseView>,
    /// Attention sinks: logits without a key that take their share of the weights.
    pub sinks: Option<Sinks>,
}

impl<'a> Merge<'a> {
    /// Returns a merge without LSE output.
    pub const fn new(states: &'a [State], o: TensorView) -> Self {
        Merge { states, o, lse: None, sinks: None }
    }

    /// Also writes the LSE of each row.
    pub const fn lse(mut self, lse: LseView) -> Self {
        self.lse = Some(lse);
        self
    }

    /// Adds attention sinks, one logit per query head.
    pub const fn sinks(mut self, sinks: Sinks) -> Self {
        self.sinks = Some(sinks);
        self
    }
}
