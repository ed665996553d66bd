//! The interface of all families' problems: buffers, a request on them, and a judge of the outputs.
use super::tensor::TensorError;
use super::tolerance::{Rule, Verdict, Worst};
use ferroflash::DType;
use ferroflash::plan::AnyRequest;
use ferroflash::request::Scratch;

mod binder;
mod device;
mod ready;

pub use binder::Binder;
pub use device::OnDevice;
pub use ready::Ready;

/// The value of every byte of an output before a launch. The value is NaN in f16, bf16 and f32.
pub(crate) const POISON: u8 = 0xff;
/// Bytes of the guards before and behind an output. A launch must not change them.
pub(crate) const GUARD: usize = 256;

/// A buffer's name and its bytes.
pub type Buffer = (String, Vec<u8>);

/// A buffer that launches read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The buffer's name.
    pub name: String,
    /// The buffer's size in bytes.
    pub bytes: usize,
    /// The content, repeated up to `bytes`. A measured input may have gigabytes; with a period, the host need
    /// not store them.
    pub period: Vec<u8>,
}

impl Input {
    /// Returns a buffer of these bytes.
    pub fn new(name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Input { name: name.into(), bytes: bytes.len(), period: bytes }
    }
}

/// A problem in host memory that runs on any device.
pub trait Work: Sync {
    /// Returns the request, and adds all of its buffers to the binder.
    fn request<'a>(&'a self, binder: &mut Binder<'_>, options: LaunchOptions<'a>) -> AnyRequest<'a>;

    /// Returns buffers that launches read.
    fn inputs(&self) -> Vec<Input> {
        let mut binder = Binder::all();
        self.request(&mut binder, LaunchOptions::default());
        binder.inputs
    }

    /// Returns buffers that launches write, with their content before a launch.
    fn outputs(&self) -> Vec<Buffer> {
        let mut binder = Binder::all();
        self.request(&mut binder, LaunchOptions::default());
        binder.outputs
    }

    /// Returns the inputs that have another content in this launch of a plan than in its other launches.
    fn changes(&self, round: usize) -> Vec<Input> {
        let mut binder = Binder::changes(round);
        self.request(&mut binder, LaunchOptions::default());
        binder.inputs
    }

    /// Returns whether launches receive counters if counters make them faster.
    fn wants_counters(&self) -> bool {
        true
    }

    /// Returns the launch that computes some of the inputs on the device, before all launches of the request:
    /// the forward, whose results a measured backward pass reads.
    fn before<'a>(&'a self, _: &mut Binder<'_>) -> Option<AnyRequest<'a>> {
        None
    }

    /// Returns the number of launches of one plan.
    fn rounds(&self) -> usize {
        1
    }

    /// Returns the rows of attention among a launch's outputs. Returns `None` if the outputs are exact, so
    /// that every device must write the same bytes.
    fn rows(&self, written: &Written) -> Option<Rows>;

    /// Computes the exact results, and returns a function that judges the outcome of each round.
    ///
    /// # Errors
    /// Returns [`TensorError`] if the problem contradicts itself.
    fn judge(&self, rule: Rule) -> Result<Judge<'_>, TensorError>;
}

/// A function that judges the outputs of a round. The function's first argument is the round's index.
pub type Judge<'a> = Box<dyn Fn(usize, &Written) -> Judgement + Send + Sync + 'a>;

/// A launch's options and scratch memory.
#[derive(Clone, Copy, Debug)]
pub struct LaunchOptions<'a> {
    /// Whether the launch writes LSE.
    pub wants_lse: bool,
    /// The kernel to run, for requests that can name one.
    pub config: Option<&'a str>,
    /// The workspace and counters, if the kernel can use them.
    pub scratch: Scratch,
}

/// All outputs and all scratch memory, for the planner's kernel.
impl Default for LaunchOptions<'_> {
    fn default() -> Self {
        LaunchOptions { wants_lse: true, config: None, scratch: Scratch::Fastest }
    }
}

/// Outputs of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The main kernel that ran: [`Plan::contract`](ferroflash::Plan::contract).
    pub entry: &'static str,
    /// All kernels that ran, in launch order.
    pub kernels: Vec<&'static str>,
    /// Bytes of the workspace.
    pub workspace: u64,
    /// The planner's reason for this kernel.
    pub reason: &'static str,
    /// The outputs.
    pub outputs: Vec<Vec<u8>>,
    /// The counters after the launch. All must be 0.
    pub counters: Vec<u8>,
}

/// Rows of O and their log-sum-exps, in any layout.
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
    /// For each row of O, its tolerance, if the row may be a sum of large numbers that cancel.
    /// Empty if no row is such a sum.
    pub tolerances: Vec<f64>,
    /// Whether O is a product of probabilities of e4m3.
    pub is_of_e4m3: bool,
}

/// An outcome compared with the exact result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judgement {
    /// Largest error of an element of O, or of a cache.
    pub max_error: f64,
    /// The largest quotient `error / allowed`.
    pub worst_ratio: f64,
    /// The list holds one message per error. Messages of tensors without a bound come last.
    pub failures: Vec<String>,
    /// Number of failures that prove no error, because the rule has no bound for a tensor
    /// ([`Verdict::is_bounded`]).
    pub unbounded: usize,
    /// Number of rows that the rule does not judge ([`super::Bounds::not_judged`]).
    pub not_judged: usize,
}

impl From<Verdict> for Judgement {
    fn from(verdict: Verdict) -> Self {
        let worst = verdict.worst().into_iter().map(Judgement::from);
        // If O has no bound, an LSE beyond its own tolerance is no proof either.
        let unproven = |of: Judgement| Judgement { unbounded: of.failures.len(), ..of };
        let worst = worst.map(|of| if verdict.is_bounded() { of } else { unproven(of) });
        let all = worst.fold(Judgement::outside(verdict.strays), Judgement::and);
        Judgement { max_error: verdict.out.error, ..all }
    }
}

impl From<Worst> for Judgement {
    fn from(worst: Worst) -> Self {
        Judgement {
            max_error: worst.error,
            worst_ratio: worst.parts(),
            failures: (!worst.passed()).then(|| worst.to_string()).into_iter().collect(),
            unbounded: usize::from(!worst.is_bounded()),
            not_judged: 0,
        }
    }
}

/// Returns the larger of two numbers. NaN counts as larger than every number.
fn worse(a: f64, b: f64) -> f64 {
    if b > a || b.is_nan() { b } else { a }
}

impl Judgement {
    /// Returns a judgement with one error.
    pub fn failed(why: impl ToString) -> Self {
        Judgement { failures: vec![why.to_string()], ..Judgement::default() }
    }

    /// Returns a judgement of `strays` elements that were written outside the outputs. Without strays, the
    /// judgement has no error.
    pub fn outside(strays: usize) -> Self {
        match strays {
            0 => Self::default(),
            count => Self::failed(format_args!("{count} elements outside of the output were written")),
        }
    }

    /// Combines two judgements.
    #[must_use]
    pub fn and(mut self, mut other: Judgement) -> Self {
        self.max_error = worse(self.max_error, other.max_error);
        self.worst_ratio = worse(self.worst_ratio, other.worst_ratio);
        let proven = |of: &Judgement| of.failures.len() - of.unbounded;
        let (own, unproven) = (proven(&self), other.failures.split_off(proven(&other)));
        self.failures.splice(own..own, other.failures);
        self.failures.extend(unproven);
        self.unbounded += other.unbounded;
        self.not_judged += other.not_judged;
        self
    }
}

/// Returns an output without its guards.
///
/// # Panics
/// Panics if the output is shorter than its guards.
pub fn unguarded(output: &[u8]) -> &[u8] {
    &output[GUARD..output.len() - GUARD]
}

/// Judges the output's guards.
pub(crate) fn guards(name: &str, buffer: &[u8]) -> Judgement {
    let outside = buffer[..GUARD].iter().chain(&buffer[buffer.len() - GUARD..]);
    match outside.filter(|byte| **byte != POISON).count() {
        0 => Judgement::default(),
        count => Judgement::failed(format_args!("{count} bytes outside of {name} were written")),
    }
}
