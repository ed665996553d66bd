//! What every family's problems have in common: buffers that a device is given, a request on them, and what
//! is right.
use super::tensor::TensorError;
use super::tolerance::{Rule, Verdict};
use ferroflash::driver::Harness;
use ferroflash::kernels::Contract;
use ferroflash::plan::{PlanOf, ScratchBytes};
use ferroflash::request::{Append, AttentionRequest, LseView, Merge, Scratch, Sinks, State, TensorView};
use ferroflash::{Attention, DType, Error, Plan};

mod device;
mod ready;

pub use device::OnDevice;
pub use ready::Ready;

/// What a buffer that a launch writes is filled with before: not a number in f16, bf16 and f32.
pub(crate) const POISON: u8 = 0xff;
/// Bytes before and behind an output that belong to nobody and must stay as they are.
pub(crate) const GUARD: usize = 256;

/// A buffer's name and its bytes.
pub type Buffer = (String, Vec<u8>);

/// A buffer that launches read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// How many bytes it has.
    pub bytes: usize,
    /// What stands there, again and again: what is measured may have gigabytes that nobody has to make.
    pub period: Vec<u8>,
}

impl Input {
    /// A buffer of these bytes.
    pub fn new(name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Input { name: name.into(), bytes: bytes.len(), period: bytes }
    }
}

/// A problem in host memory that any device can be given.
pub trait Work: Sync {
    /// Buffers that launches read.
    fn inputs(&self) -> Vec<Input>;

    /// Buffers that launches write, as they are before.
    fn outputs(&self) -> Vec<Buffer>;

    /// Whether launches are given counters, where these help.
    fn wants_counters(&self) -> bool {
        true
    }

    /// The request on buffers at these addresses.
    fn request<'a>(&'a self, inputs: &[u64], outputs: &[u64], room: Room<'a>) -> Asked<'a>;

    /// Launches of one plan, one after the other: what inputs become before each, by their places. The first
    /// is the problem as it is.
    fn rounds(&self) -> Vec<Vec<(usize, Vec<u8>)>> {
        vec![vec![]]
    }

    /// What attention's arithmetic has made of a launch's outputs. None where every byte follows from the
    /// inputs, whatever the device.
    fn rows(&self, written: &Written) -> Option<Rows>;

    /// Computes what is right: what judges the outcome of each round.
    ///
    /// # Errors
    /// [`TensorError`] where the problem contradicts itself.
    fn judge(&self, rule: Rule) -> Result<Judge<'_>, TensorError>;
}

/// Judges what a round has written.
pub type Judge<'a> = Box<dyn Fn(usize, &Written) -> Judgement + Send + Sync + 'a>;

/// What a launch is given beside its tensors.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    /// Whether it is to write the log-sum-exp.
    pub wants_lse: bool,
    /// The kernel to run, where requests can name one.
    pub config: Option<&'a str>,
    /// As much memory as helps, where any does.
    pub scratch: Scratch,
}

/// What a launch has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The kernel that ran; the first where there were two.
    pub entry: &'static str,
    /// Why the planner took it.
    pub reason: &'static str,
    /// The outputs.
    pub outputs: Vec<Vec<u8>>,
    /// Counters, which should be 0 again.
    pub counters: Vec<u8>,
}

/// Rows of O and their log-sum-exps, of any layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// Element type of O.
    pub dtype: DType,
    /// Elements of a row of O.
    pub columns: usize,
    /// O, row by row.
    pub o: Vec<f32>,
    /// The log-sum-exp of each row, in any order.
    pub lse: Vec<f32>,
}

/// How an outcome compares with what is right.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judgement {
    /// Largest error of an element of O, or of a cache.
    pub max_error: f64,
    /// Largest `error / allowed`.
    pub worst_ratio: f64,
    /// What is wrong, in words.
    pub failures: Vec<String>,
}

impl From<Verdict> for Judgement {
    fn from(verdict: Verdict) -> Self {
        let ratios = verdict.worst().into_iter().map(|worst| worst.error / worst.tolerance);
        Judgement {
            max_error: verdict.out.error,
            worst_ratio: ratios.fold(0.0, worse),
            failures: verdict.failures().collect(),
        }
    }
}

/// The larger of both; what is not a number is larger than all.
fn worse(a: f64, b: f64) -> f64 {
    if b > a || b.is_nan() { b } else { a }
}

impl Judgement {
    /// That something is wrong.
    pub fn failed(why: impl ToString) -> Self {
        Judgement { failures: vec![why.to_string()], ..Judgement::default() }
    }

    /// That so many elements outside of the outputs were written, if any.
    pub fn outside(strays: usize) -> Self {
        match strays {
            0 => Self::default(),
            count => Self::failed(format_args!("{count} elements outside of the output were written")),
        }
    }

    /// Both.
    #[must_use]
    pub fn and(mut self, other: Judgement) -> Self {
        self.max_error = worse(self.max_error, other.max_error);
        self.worst_ratio = worse(self.worst_ratio, other.worst_ratio);
        self.failures.extend(other.failures);
        self
    }
}

/// An output of so many bytes, poisoned, with its guards.
pub(crate) fn guarded(name: &str, bytes: usize) -> Buffer {
    (name.into(), vec![POISON; bytes + 2 * GUARD])
}

/// What of it is the output's own.
pub(crate) fn inside(buffer: &[u8]) -> &[u8] {
    &buffer[GUARD..buffer.len() - GUARD]
}

/// Its guards, where they were written.
pub(crate) fn guards(name: &str, buffer: &[u8]) -> Judgement {
    let outside = buffer[..GUARD].iter().chain(&buffer[buffer.len() - GUARD..]);
    match outside.filter(|byte| **byte != POISON).count() {
        0 => Judgement::default(),
        count => Judgement::failed(format_args!("{count} bytes outside of {name} were written")),
    }
}

/// A request of any kind.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one for each launch")]
pub enum Asked<'a> {
    /// Attention.
    Attention(AttentionRequest<'a>),
    /// New keys and values.
    Append(Append),
    /// A merge, with its list.
    Merge(Vec<State>, TensorView, LseView, Option<Sinks>),
}

/// A plan of any kind.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "plans are `Copy`")]
pub enum Plans {
    /// Of [`Asked::Attention`].
    Attention(Plan),
    /// Of [`Asked::Append`].
    Append(PlanOf<Append>),
    /// Of [`Asked::Merge`].
    Merge(PlanOf<Merge<'static>>),
}

/// Does the same with the plan of any kind.
macro_rules! any {
    ($plans:expr, $plan:ident => $do:expr) => {
        match $plans {
            Plans::Attention($plan) => $do,
            Plans::Append($plan) => $do,
            Plans::Merge($plan) => $do,
        }
    };
}

impl Plans {
    /// The kernel; the first where there are two.
    pub fn contract(&self) -> &'static Contract {
        any!(self, plan => plan.contract())
    }

    /// Why this kernel.
    pub fn reason(&self) -> &'static str {
        any!(self, plan => plan.reason())
    }

    /// The memory that launches use beside their tensors.
    fn scratch_bytes(&self) -> ScratchBytes {
        any!(self, plan => plan.scratch_bytes())
    }

    /// Loads what it launches.
    fn load<D: Harness>(&self, attention: &Attention<D>) -> Result<(), Error> {
        any!(self, plan => attention.load(plan))
    }
}

fn merge<'a>((states, o, lse, sinks): (&'a [State], TensorView, LseView, Option<Sinks>)) -> Merge<'a> {
    let merge = Merge::new(states, o).lse(lse);
    sinks.map_or(merge, |sinks| merge.sinks(sinks))
}

impl Asked<'_> {
    /// Plans it.
    ///
    /// # Errors
    /// Those of planning.
    pub fn plan<D: Harness>(&self, attention: &Attention<D>) -> Result<Plans, Error> {
        match self {
            Asked::Attention(request) => attention.plan(request).map(Plans::Attention),
            Asked::Append(append) => attention.plan(append).map(Plans::Append),
            Asked::Merge(states, o, lse, sinks) => {
                attention.plan(&merge((states, *o, *lse, *sinks))).map(Plans::Merge)
            }
        }
    }

    /// Enqueues it.
    ///
    /// # Safety
    /// As [`Attention::launch`].
    unsafe fn launch<D: Harness>(
        &self,
        attention: &Attention<D>,
        plan: &Plans,
        stream: &D::Stream,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            match (self, plan) {
                (Asked::Attention(request), Plans::Attention(plan)) => {
                    attention.launch(plan, request, stream)
                }
                (Asked::Append(append), Plans::Append(plan)) => attention.launch(plan, append, stream),
                (Asked::Merge(states, o, lse, sinks), Plans::Merge(plan)) => {
                    attention.launch(plan, &merge((states, *o, *lse, *sinks)), stream)
                }
                (_, plan) => {
                    let expected = "a plan of the same kind";
                    Err(Error::invalid("plan", plan.contract().symbol, expected))
                }
            }
        }
    }
}
