//! Random problems of every kind. Some are valid; others are valid problems to which one fault was added.
use super::inputs::Random;
use super::subject::Task;
use super::tolerance::{ENOUGH_ELEMENTS, Rule};
use super::work::{OnDevice, Work};
use ferroflash::driver::Harness;
use ferroflash::kernels::Contract;
use ferroflash::request::Precision;
use ferroflash::spec::GRADIENTS;
use ferroflash::{Attention, Capabilities, Error};

mod cases;
mod faults;
mod others;
mod tensors;

pub use faults::{faults, refused};

/// A problem as data, and its description.
type Drawn = (Task, String);

/// Draws a problem of a family.
type Draw = fn(&mut Random, Limits) -> Drawn;

/// The families of [`Fuzz::other`], by name.
const DRAWS: [(&str, Draw); 7] = [
    ("packed", cases::varlen),
    ("decode", |random, limits| cases::with_trees(random, limits, false)),
    ("paged", |random, limits| cases::with_trees(random, limits, true)),
    ("append", others::append),
    ("merge", others::merge),
    ("mla", cases::latent),
    ("prefix", cases::prefix),
];

/// The family of products of eight bits.
const EIGHT_BITS: &str = "eight-bits";

/// A random valid problem in memory. Equal seeds and limits give equal problems.
pub struct Fuzz {
    /// The seed that drew the problem.
    pub seed: u64,
    /// The problem's family, one of [`families`]; `None` for attention on tensors of equal lengths.
    pub family: Option<&'static str>,
    /// The kernel's symbol, or a name of the lineage, or `None` if the planner chooses.
    pub config: Option<&'static str>,
    /// The standard deviations of Q, K and V, if the inputs, the scale and the softcap may have any
    /// magnitude. [`Bounds`](super::Bounds) then judges the result instead of the tolerance rule.
    pub wide: Option<[f64; 3]>,
    /// Whether O has fewer than [`ENOUGH_ELEMENTS`] elements. With few elements, `max|naive - exact|` may by
    /// luck be smaller than one rounding of a correct result. The rule then also permits an error of two
    /// roundings of the largest value, plus 1e-5.
    pub is_small: bool,
    rule: Rule,
    /// Number of rows of O, over all heads, of attention on tensors of equal lengths.
    rows: usize,
    work: Box<dyn Work + Send>,
    text: String,
}

/// The result of a random problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Findings {
    /// Every error of the result, in words.
    pub failures: Vec<String>,
    /// Number of rows of O, over all heads.
    pub rows: usize,
    /// Number of rows that no rule judges ([`Bounds::not_judged`](super::Bounds::not_judged)).
    pub not_judged: usize,
}

/// Upper limits of random problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of queries per sequence, and of keys per sequence.
    pub seqlen: usize,
    /// Maximum number of query heads, and of batches.
    pub heads: usize,
    /// Maximum number of sequences of a varlen batch or a KV cache.
    pub sequences: usize,
    /// Maximum number of multiplications of Q Kᵀ. The reference's time depends on it.
    pub products: usize,
    /// Whether invalid `cu_seqlens` may make sequences overlap. The simulator reports the overlap as a race.
    pub overlaps: bool,
    /// Decades above and below 1. In one of three problems, scale, softcap and inputs are drawn from this
    /// range, within the limits of the planner and the type. 0 draws no such problem.
    pub decades: u8,
    /// The precision with products of e4m3 that the device computes. Each computes `Precision::Int8F16`.
    pub of_e4m3: Option<Precision>,
}

impl Limits {
    /// Limits for a GPU.
    pub const GPU: Self = Limits { products: 300 << 20, overlaps: true, ..Self::of([800, 12, 16]) };
    /// Limits for a simulated L4: a case takes a fraction of a second.
    pub const SIMULATOR: Self =
        Limits { products: 30 << 20, of_e4m3: Some(Precision::Int8Fp8), ..Self::of([150, 3, 6]) };

    const fn of([seqlen, heads, sequences]: [usize; 3]) -> Self {
        Limits { seqlen, heads, sequences, products: 0, overlaps: false, decades: 30, of_e4m3: None }
    }
}

fn below(random: &mut Random, limit: usize) -> usize {
    (random.bits() % limit as u64) as usize
}

fn one_in(random: &mut Random, n: usize) -> bool {
    below(random, n) == 0
}

fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[below(random, from.len())]
}

/// Returns the names of the families of [`Fuzz::other`].
pub fn families() -> impl Iterator<Item = &'static str> {
    let backward = (!GRADIENTS.is_empty()).then_some("backward");
    DRAWS.iter().map(|(family, _)| *family).chain([EIGHT_BITS]).chain(backward)
}

impl Fuzz {
    /// Draws an attention problem of `seed` on tensors of equal lengths. It may name its kernel. A device
    /// with these capabilities can solve the problem.
    pub fn new(seed: u64, limits: Limits, capabilities: &Capabilities) -> Self {
        tensors::draw(seed, limits, capabilities)
    }

    /// Draws the problem of `seed` of another family. The problem consists of several launches of one plan.
    /// Each launch finds other integers in device memory, and some of these integers are invalid.
    pub fn other(seed: u64, limits: Limits) -> Self {
        if seed % 16 == 3 {
            return tensors::eight_bits(seed, limits);
        }
        let random = &mut Random::new(seed);
        // Other seeds draw the same problems in a build without backward kernels.
        let (family, draw) = match seed % 16 {
            5 | 13 if !GRADIENTS.is_empty() => ("backward", cases::backward as Draw),
            11 => (EIGHT_BITS, cases::eight_bits as Draw),
            _ => DRAWS[below(random, DRAWS.len())],
        };
        let (task, text) = draw(random, limits);
        let work = task.work();
        let is_small = work.outputs().iter().all(|(_, bytes)| bytes.len() < 2 * ENOUGH_ELEMENTS);
        let rule = if is_small { Rule::Few } else { Rule::Tolerance };
        let (text, family) = (format!("{family}: {text}"), Some(family));
        Fuzz { seed, family, config: None, wide: None, is_small, rule, rows: 0, work, text }
    }

    /// Returns the problem.
    pub fn work(&self) -> &dyn Work {
        &*self.work
    }

    /// Returns the kernel that the planner selects.
    ///
    /// # Errors
    /// Returns the errors of planning and of the driver. Each of them is a failure, because the problem is
    /// valid.
    pub fn kernel<D: Harness>(&self, attention: &Attention<D>) -> Result<&'static Contract, Error> {
        OnDevice::new(attention, &*self.work, self.config)?.kernel()
    }

    /// Runs all launches and judges their results: by [`Bounds`](super::Bounds) if the problem has `wide`
    /// inputs or slopes on tensors of equal lengths, otherwise by the tolerance rule.
    ///
    /// # Errors
    /// Returns the errors of planning, launching and waiting. Each of them is a failure, because the problem
    /// is valid.
    pub fn run<D: Harness>(&self, attention: &Attention<D>) -> Result<Findings, Error> {
        let judge = self.work.judge(self.rule).map_err(|e| Error::invalid("fuzz", self, e))?;
        let rounds = OnDevice::new(attention, &*self.work, self.config)?.run_all()?;
        let mut findings = Findings { failures: vec![], rows: self.rows, not_judged: 0 };
        for (round, written) in rounds.iter().enumerate() {
            let judgement = judge(round, written);
            let place = if self.family.is_some() { format!("launch {}: ", round + 1) } else { String::new() };
            findings.failures.extend(judgement.failures.iter().map(|failure| format!("{place}{failure}")));
            findings.not_judged += judgement.not_judged;
        }
        Ok(findings)
    }
}

impl std::fmt::Display for Fuzz {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "case {}: {}", self.seed, self.text)
    }
}
