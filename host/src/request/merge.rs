//! Attention over some keys and over others becomes attention over all.
use super::{LseView, Sinks, TensorView};

/// What attention has made of some keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    /// Its O, normalised: `[batch, seqlen, heads, head_dim]`.
    pub o: TensorView,
    /// Its log-sum-exp. A row that has seen no key has `-inf`, or `+inf` as FlashAttention-2 writes it; its O
    /// is then not looked at.
    pub lse: LseView,
}

impl State {
    /// The results of one launch.
    pub const fn new(o: TensorView, lse: LseView) -> Self {
        State { o, lse }
    }
}

/// Merges states of the same queries and different keys: `o = sum of exp(lse[i]) o[i] / sum of exp(lse[i])`,
/// in the order of the states, accumulated in f32. A row that has seen no key in any of them gives 0, and
/// `-inf` as its log-sum-exp.
///
/// One state alone may be merged with sinks. `o` and `lse` may be those of a state.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "a description of a launch does nothing by itself; plan and launch it"]
#[non_exhaustive]
pub struct Merge<'a> {
    /// The states: 1 or more, f16, bf16 or f32, of one shape, one type and one logarithm. Those from the
    /// second on have the same strides, and lie equally far apart.
    pub states: &'a [State],
    /// Output: of the states' type, or f16 or bf16 where that is f32. Written whole; overlaps nothing else,
    /// unless it is a state's own.
    pub o: TensorView,
    /// Where the log-sum-exp over all keys goes, of either logarithm.
    pub lse: Option<LseView>,
    /// Logits that belong to no key: they take their share of the weights.
    pub sinks: Option<Sinks>,
}

impl<'a> Merge<'a> {
    /// Without a log-sum-exp.
    pub const fn new(states: &'a [State], o: TensorView) -> Self {
        Merge { states, o, lse: None, sinks: None }
    }

    /// Also write the log-sum-exp of each row.
    pub const fn lse(mut self, lse: LseView) -> Self {
        self.lse = Some(lse);
        self
    }

    /// Add a logit for each head that belongs to no key.
    pub const fn sinks(mut self, sinks: Sinks) -> Self {
        self.sinks = Some(sinks);
        self
    }
}
