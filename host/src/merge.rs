//! Attention over some keys and over others becomes attention over all: [`Merge`] and its plan.
use crate::families::{Kernels, merge as family};
use crate::request::{Request, sealed};
use crate::{Capabilities, Error, LseView, Sinks, TensorView, Tuning, validate};
use spec::Contract;

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

/// How a [`Merge`] is launched. It serves every other one of the same types.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MergePlan {
    tensors: family::Tensors,
    launch: family::Launch,
}

/// Checks `merge` and decides how it is launched on a device with these capabilities.
///
/// # Errors
/// [`Error::Invalid`] names the value that is wrong, [`Error::Unsupported`] the feature that this crate or
/// this device has not.
pub fn plan_merge(merge: &Merge<'_>, capabilities: &Capabilities) -> Result<MergePlan, Error> {
    validate::merge::merge(merge)?;
    let tensors = family::Tensors::of(merge)?;
    let launch = family::launch(family::choose(merge, capabilities)?, &tensors)?;
    Ok(MergePlan { tensors, launch })
}

impl MergePlan {
    /// The kernel: its symbol, threads and shared memory.
    pub fn contract(&self) -> &'static Contract {
        self.launch.contract()
    }

    /// Its blocks.
    pub const fn grid(&self) -> [u32; 3] {
        self.launch.grid
    }

    /// Why this kernel.
    pub const fn reason(&self) -> &'static str {
        "the one kernel for states and output of these types"
    }

    fn bind(&self, merge: &Merge<'_>) -> Result<family::Launch, Error> {
        let tensors = family::Tensors::of(merge)?;
        if tensors == self.tensors {
            return Ok(self.launch);
        }
        validate::merge::merge(merge)?;
        let ([states, output], own) = (tensors.types(), self.tensors.types());
        if [states, output] != own {
            let [from, to] = own.map(|dtype| dtype.name());
            let expected = format_args!("the plan makes {to} of {from}; make another");
            let value = format_args!("{} of {}", output.name(), states.name());
            return Err(Error::invalid("merge", value, expected));
        }
        family::launch(self.launch.kernel, &tensors)
    }
}

impl Request for Merge<'_> {
    type Plan = MergePlan;
}

impl sealed::Request<MergePlan> for Merge<'_> {
    fn plan(&self, on: &Capabilities, _: &Tuning, _: u64) -> Result<MergePlan, Error> {
        plan_merge(self, on)
    }

    fn bind(&self, plan: &MergePlan) -> Result<impl Kernels, Error> {
        plan.bind(self)
    }
}

impl sealed::Planned for MergePlan {
    fn launches(&self) -> &impl Kernels {
        &self.launch
    }
}
