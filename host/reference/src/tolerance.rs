//! The rule that judges a result.
use super::arithmetic::unit_roundoff;
use super::attention::{Inputs, Outputs, exact, naive};
use super::tensor::HostTensor;
use ferroflash::DType;

/// What attention may be off by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// FlashAttention's tolerance.
    Tolerance,
    /// The same for so few elements that the largest error of a naive result may be small by luck: two
    /// roundings of the largest value, and 1e-5, are allowed, too.
    Few,
}

/// The exact result of a problem, and how far from it a result may be.
#[derive(Clone, Debug)]
pub struct Reference {
    /// The exact result.
    pub exact: Outputs,
    /// `max|naive - exact|` over O.
    pub naive_error: f64,
    /// How far an element of O may be from exact: `2 * naive_error + 1e-5`.
    pub tolerance: f64,
    /// How far an LSE may be from exact.
    pub lse_tolerance: f64,
}

/// The element that is furthest from exact.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worst {
    /// Which tensor: `o` or `lse`.
    pub tensor: &'static str,
    /// Batch.
    pub batch: usize,
    /// Row (position in the sequence).
    pub row: usize,
    /// Head.
    pub head: usize,
    /// Column; 0 for LSE.
    pub column: usize,
    /// What was computed.
    pub got: f64,
    /// What is right.
    pub want: f64,
    /// `|got - want|`; infinite where either is not a number.
    pub error: f64,
    /// What it may be.
    pub tolerance: f64,
}

/// A judged result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The worst element of O.
    pub out: Worst,
    /// The worst element of LSE, where there is an LSE.
    pub lse: Option<Worst>,
    /// Elements that were written although they belong to neither.
    pub strays: usize,
}

impl Verdict {
    /// Whether every element is within its tolerance, and nothing else was written.
    pub fn passed(&self) -> bool {
        self.failures().next().is_none()
    }

    /// Whether the rule has a bound for these inputs. Where it has none nothing passes, and nothing is shown
    /// to be wrong.
    pub fn is_bounded(&self) -> bool {
        self.worst().iter().all(|worst| worst.tolerance.is_finite())
    }

    /// What is wrong, in words.
    pub fn failures(&self) -> impl Iterator<Item = String> {
        let strays =
            (self.strays > 0).then(|| format!("{} elements outside of the output were written", self.strays));
        let worst = self.worst().into_iter().filter(|worst| !worst.passed());
        worst.map(|worst| worst.to_string()).chain(strays)
    }

    /// Of two the worst elements, in parts of what they may be off by; all strays.
    #[must_use]
    pub fn or_worse(&self, other: &Verdict) -> Verdict {
        let worse = |a: &Worst, b: &Worst| if b.parts() > a.parts() { *b } else { *a };
        Verdict {
            out: worse(&self.out, &other.out),
            lse: self.lse.zip(other.lse).map(|(a, b)| worse(&a, &b)).or(self.lse).or(other.lse),
            strays: self.strays + other.strays,
        }
    }

    /// The worst elements of O and, where there is one, of LSE.
    pub fn worst(&self) -> Vec<Worst> {
        [Some(self.out), self.lse].into_iter().flatten().collect()
    }
}

impl Worst {
    /// That of a tensor without an element, as packed sequences without a query make.
    fn nothing(tensor: &'static str, tolerance: f64) -> Self {
        let [batch, row, head, column] = [0; 4];
        Worst { tensor, batch, row, head, column, got: 0.0, want: 0.0, error: 0.0, tolerance }
    }

    /// The error in parts of what it may be; infinite where there is no bound.
    fn parts(&self) -> f64 {
        match (self.error, self.tolerance.is_finite()) {
            (_, false) => f64::INFINITY,
            (0.0, true) => 0.0,
            (error, true) => error / self.tolerance,
        }
    }

    /// Whether it is within its tolerance. Nothing is within a tolerance that is not finite.
    pub fn passed(&self) -> bool {
        self.tolerance.is_finite() && self.error <= self.tolerance
    }
}

impl std::fmt::Display for Worst {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Worst { tensor, batch, row, head, column, got, want, error, tolerance } = self;
        if !tolerance.is_finite() {
            return write!(f, "{tensor} cannot be judged: {UNBOUNDED}");
        }
        write!(
            f,
            "{tensor}[batch {batch}, row {row}, head {head}, column {column}] is {got}, should be {want}: "
        )?;
        write!(f, "off by {error:.3e}, allowed {tolerance:.3e}")
    }
}

/// Why a result that may be right does not pass.
const UNBOUNDED: &str = "the tolerance rule has no bound for these inputs: computed in their own type, \
                         naively, they overflow or are no numbers";
/// Rounding of f32 sums and of the base-2 exponential and logarithm, for scores of any size that 16-bit
/// inputs give.
const LSE_ABSOLUTE: f64 = 1e-4;
/// LSE has 24 bits like every f32, its scores are sums of products in f32.
const LSE_RELATIVE: f64 = 1e-5;

impl Reference {
    /// Computes exact and naive results and what follows from them.
    pub fn new(inputs: &Inputs) -> Self {
        Self::of_columns(inputs, usize::MAX)
    }

    /// The same of O's first columns, as a latent cache's values are the first columns of its keys.
    pub(super) fn of_columns(inputs: &Inputs, columns: usize) -> Self {
        let [exact, naive] = [exact(inputs), naive(inputs)].map(|all| all.first_columns(columns));
        let naive_error = max_difference(&naive.out, &exact.out);
        let largest_lse = exact.lse.iter().filter(|x| x.is_finite()).fold(0.0, |a: f64, x| a.max(x.abs()));
        Reference {
            exact,
            naive_error,
            tolerance: Self::allowed(naive_error),
            // Kernels sum the probabilities that they multiply with V, rounded to the inputs' type: the error
            // of O cancels, and the logarithm of the sum is off by at most a rounding.
            lse_tolerance: LSE_ABSOLUTE + LSE_RELATIVE * largest_lse + unit_roundoff(inputs.problem().dtype),
        }
    }

    /// The same by another rule, for these values.
    #[must_use]
    pub(super) fn by(self, rule: Rule, dtype: DType, values: impl Iterator<Item = f64>) -> Self {
        let roundings = match rule {
            Rule::Tolerance => 0.0,
            Rule::Few => two_roundings(dtype, values),
        };
        Reference { tolerance: self.tolerance.max(roundings), ..self }
    }

    /// What naive attention's error allows.
    pub(super) fn allowed(naive_error: f64) -> f64 {
        2.0 * naive_error + 1e-5
    }

    /// Judges O and, where there is one, LSE (`[batch, heads, rows]`, contiguous). `None` where a shape is
    /// not the reference's.
    ///
    /// O: `max|out - exact| <= 2 * max|naive - exact| + 1e-5`, FlashAttention's rule, and exactly 0 in a row
    /// that sees no key: nothing is rounded there. LSE: [`Reference::lse_tolerance`]; -inf only equals -inf.
    pub fn judge(&self, out: &HostTensor, lse: Option<&[f32]>) -> Option<Verdict> {
        let [batches, rows, heads, head_dim] = self.exact.shape;
        if out.shape() != self.exact.shape || lse.is_some_and(|lse| lse.len() != self.exact.lse.len()) {
            return None;
        }
        let position = move |i: usize| (i / (rows * heads), i / heads % rows, i % heads);
        let elements = |unseen: bool| {
            let sees_no_key = move |(batch, row, head)| {
                self.exact.lse[(batch * heads + head) * rows + row] == f64::NEG_INFINITY
            };
            let rows = (0..batches * rows * heads).filter(move |i| !unseen || sees_no_key(position(*i)));
            rows.flat_map(move |i| {
                let (batch, row, head) = position(i);
                let want = &self.exact.out[i * head_dim..][..head_dim];
                out.values(batch, row, head)
                    .zip(want)
                    .enumerate()
                    .map(move |(column, (got, want))| ([batch, row, head, column], f64::from(got), *want))
            })
        };
        let unseen = worst("o", 0.0, elements(true)).filter(|worst| !worst.passed());
        let out = unseen.or_else(|| worst("o", self.tolerance, elements(false)));
        let out = out.unwrap_or(Worst::nothing("o", self.tolerance));
        let lse = lse.map(|lse| {
            let elements = lse.iter().zip(&self.exact.lse).enumerate().map(|(i, (got, want))| {
                ([i / (heads * rows), i % rows, i / rows % heads, 0], f64::from(*got), *want)
            });
            let worst = worst("lse", self.lse_tolerance, elements);
            worst.unwrap_or(Worst::nothing("lse", self.lse_tolerance))
        });
        Some(Verdict { out, lse, strays: 0 })
    }
}

/// What rounding probabilities and results to the type may add up to. What is not a number does not count.
pub(super) fn two_roundings(dtype: DType, values: impl Iterator<Item = f64>) -> f64 {
    2.0 * unit_roundoff(dtype) * values.fold(0.0, |largest: f64, x| largest.max(x.abs())) + 1e-5
}

/// `|a - b|`, 0 for equal infinities, infinite where it is not a number.
fn difference(a: f64, b: f64) -> f64 {
    let difference = if a == b { 0.0 } else { (a - b).abs() };
    if difference.is_nan() { f64::INFINITY } else { difference }
}

fn max_difference(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| difference(*a, *b)).fold(0.0, f64::max)
}

/// The element furthest from what it should be: `(position, got, want)`.
pub(super) fn worst(
    tensor: &'static str,
    tolerance: f64,
    elements: impl Iterator<Item = ([usize; 4], f64, f64)>,
) -> Option<Worst> {
    elements
        .map(|([batch, row, head, column], got, want)| {
            let error = difference(got, want);
            Worst { tensor, batch, row, head, column, got, want, error, tolerance }
        })
        .reduce(|a, b| if b.error > a.error { b } else { a })
}
