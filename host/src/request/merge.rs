//! Merge of partial attention states.
use super::{LseView, Sinks, TensorView};

/// A partial state: the result of attention over some of the keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State<M = u64> {
    /// The partial O, normalised: `[batch, seqlen, heads, head_dim]`.
    pub o: TensorView<M>,
    /// The partial LSE. A row that saw no key has `-inf`, or `+inf` as FlashAttention-2 writes it. The merge
    /// then ignores the row's O.
    pub lse: LseView<M>,
}

impl<M> State<M> {
    /// Creates a state from the outputs of one launch.
    pub const fn new(o: TensorView<M>, lse: LseView<M>) -> Self {
        State { o, lse }
    }
}

/// Merges states that have the same queries and different keys: `o = sum of exp(lse[i]) o[i] / sum of
/// exp(lse[i])`, in the order of the states, accumulated in f32. A row that saw no key in any state gives O =
/// 0 and LSE = `-inf`.
///
/// A single state may be merged with sinks. `o` and `lse` may be the tensors of a state.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "a description of a launch does nothing by itself; plan and launch it"]
#[non_exhaustive]
pub struct Merge<'a> {
    /// The states, at least one: f16, bf16 or f32, with equal shapes, dtypes and units of the LSE. The states
    /// after the first one have equal strides, and the distances between them are equal.
    pub states: &'a [State],
    /// Output: the states' dtype, or f16 or bf16 for f32 states. The kernel writes all of O. O must not
    /// overlap another tensor, except the O of one state at the same place.
    pub o: TensorView,
    /// Output for the LSE over all keys, in either unit.
    pub lse: Option<LseView>,
    /// Attention sinks: one logit per query head. A sink adds to the sum of the weights, but has no key.
    pub sinks: Option<Sinks>,
}

impl<'a> Merge<'a> {
    /// Creates a merge without LSE output.
    pub const fn new(states: &'a [State], o: TensorView) -> Self {
        Merge { states, o, lse: None, sinks: None }
    }

    /// Sets the output for the LSE of each row.
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
