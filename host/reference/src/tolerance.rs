//! The tolerance rule.
use super::arithmetic::{OnElementsOf, OnMagnitudes, decode, encode, unit_roundoff};
use super::attention::{Inputs, Outputs, attention, naive, without_sinks};
use super::eight_bits::eight_bits;
use super::tensor::HostTensor;
use ferroflash::DType;
use ferroflash::request::{Precision, RowOutputs};

/// The tolerance of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// FlashAttention's rule.
    Tolerance,
    /// FlashAttention's rule, widened for few elements. With few elements, the naive result's largest error
    /// may be small by luck. Two roundings of the largest value plus 1e-5 are also permitted.
    Few,
    /// The error [bounds](super::Bounds) of inputs of any magnitude. Results on caches keep FlashAttention's
    /// rule.
    Bounds,
}

/// The exact result of a problem, and the tolerance.
#[derive(Clone, Debug)]
pub struct Reference {
    /// The exact result.
    pub exact: Outputs,
    /// `max|naive - exact|` over O.
    pub naive_error: f64,
    /// The largest permitted error of an element of O: `2 * naive_error + 1e-5`. If O has fewer than
    /// [`ENOUGH_ELEMENTS`] elements, two roundings of its largest element are also permitted.
    pub tolerance: f64,
    /// The largest permitted error of an LSE.
    pub lse_tolerance: f64,
    /// The largest permitted sum of the errors of O: infinite, but for products of eight bits. A kernel whose
    /// results are all too small by a common factor passes by the largest error alone.
    pub sum_tolerance: f64,
}

/// The element with the largest error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worst {
    /// Name of the tensor: `o`, or an output of rows.
    pub tensor: &'static str,
    /// Batch.
    pub batch: usize,
    /// Row: position in the sequence.
    pub row: usize,
    /// Head.
    pub head: usize,
    /// Column; 0 in an output of rows.
    pub column: usize,
    /// The kernel's value.
    pub got: f64,
    /// The exact value.
    pub want: f64,
    /// `|got - want|`; infinite if either is NaN.
    pub error: f64,
    /// The largest permitted error.
    pub tolerance: f64,
}

/// A judged result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The worst element of O.
    pub out: Worst,
    /// The worst element of each output of rows, or `None` without the output.
    pub rows: RowOutputs<Option<Worst>>,
    /// Number of elements that were written outside of the outputs.
    pub strays: usize,
}

impl Verdict {
    /// Returns whether every element is within its tolerance and nothing was written outside of the outputs.
    pub fn passed(&self) -> bool {
        self.failures().next().is_none()
    }

    /// Returns whether the rule has a finite bound for these inputs. Without a bound, no result passes, and
    /// no result is proven wrong.
    pub fn is_bounded(&self) -> bool {
        self.worst().iter().all(Worst::is_bounded)
    }

    /// Returns one message per error.
    pub fn failures(&self) -> impl Iterator<Item = String> {
        let strays =
            (self.strays > 0).then(|| format!("{} elements outside of the output were written", self.strays));
        let worst = self.worst().into_iter().filter(|worst| !worst.passed());
        worst.map(|worst| worst.to_string()).chain(strays)
    }

    /// Combines two verdicts: for each tensor the element that is worse relative to its tolerance, and the
    /// sum of the writes outside.
    #[must_use]
    pub fn or_worse(&self, other: &Verdict) -> Verdict {
        let worse = |a: &Worst, b: &Worst| if b.parts() > a.parts() { *b } else { *a };
        Verdict {
            out: worse(&self.out, &other.out),
            rows: self.rows.zip(other.rows).map(|_, (a, b)| match (a, b) {
                (Some(a), Some(b)) => Some(worse(&a, &b)),
                (a, b) => a.or(b),
            }),
            strays: self.strays + other.strays,
        }
    }

    /// Returns the worst elements of O and of the outputs of rows.
    pub fn worst(&self) -> Vec<Worst> {
        std::iter::once(self.out).chain(self.rows.named().filter_map(|(_, worst)| worst)).collect()
    }
}

impl Worst {
    /// Returns the verdict of a tensor without elements, such as O of a varlen batch without queries.
    fn nothing(tensor: &'static str, tolerance: f64) -> Self {
        let [batch, row, head, column] = [0; 4];
        Worst { tensor, batch, row, head, column, got: 0.0, want: 0.0, error: 0.0, tolerance }
    }

    /// Returns the error relative to the tolerance, or infinite if there is no tolerance.
    pub(super) fn parts(&self) -> f64 {
        match (self.error, self.is_bounded()) {
            (_, false) => f64::INFINITY,
            (0.0, true) => 0.0,
            (error, true) => error / self.tolerance,
        }
    }

    /// Returns whether the tolerance is finite.
    pub(super) fn is_bounded(&self) -> bool {
        self.tolerance.is_finite()
    }

    /// Returns whether the error is within a finite tolerance.
    pub fn passed(&self) -> bool {
        self.is_bounded() && self.error <= self.tolerance
    }
}

impl std::fmt::Display for Worst {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Worst { tensor, batch, row, head, column, got, want, error, tolerance } = self;
        if !self.is_bounded() {
            return write!(f, "{tensor} cannot be judged: {UNBOUNDED}");
        }
        write!(
            f,
            "{tensor}[batch {batch}, row {row}, head {head}, column {column}] is {got}, should be {want}: "
        )?;
        write!(f, "off by {error:.3e}, allowed {tolerance:.3e}")
    }
}

/// With fewer elements of O, the naive result's largest error may be smaller than two roundings by luck. An O
/// of 1280 elements, the largest of which is 1.11, had a naive error of 0.38 units in the last place.
pub const ENOUGH_ELEMENTS: usize = 1 << 14;

/// Factors of the scales of Q of e4m3. Kernels have one scale for all sequences, so their roundings differ.
/// With fewer than [`FEW_ELEMENTS`] of O, errors may be small by luck, and the largest of all factors counts.
const STRETCHES: [f64; 4] = [1.0, 1.19, 1.41, 1.68];
const FEW_ELEMENTS: usize = 1 << 10;

/// The message for a result that cannot be judged.
const UNBOUNDED: &str =
    "the tolerance rule has no bound for these inputs: naive attention in their dtype overflows or gives NaN";
/// Absolute error of the LSE from f32 sums and from the base-2 exponential and logarithm.
const LSE_ABSOLUTE: f64 = 1e-4;
/// Relative error of the LSE: the LSE is an f32, and its scores are f32 sums of products.
const LSE_RELATIVE: f64 = 1e-5;

impl Reference {
    /// Computes the exact result, the naive result and the tolerances.
    pub fn new(inputs: &Inputs) -> Self {
        if inputs.problem().precision != Precision::Inputs {
            return Self::of_eight_bits(inputs);
        }
        let mut reference = Self::of_results(without_sinks(inputs), &naive(inputs), inputs.problem().o_dtype);
        if let Some(largest) = inputs.v().largest_scaled() {
            // Decode kernels round each probability to f16 after its product with its value's scale, so the
            // error does not cancel with the error of the sum.
            reference.tolerance += unit_roundoff(DType::F16) * largest;
            // Prefill kernels round each product of an element and its row's scale. In naive attention, later
            // roundings may cancel the errors of a few rows.
            let rounded = attention(inputs, OnElementsOf(inputs.problem().dtype));
            reference.tolerance += max_difference(&rounded.out, &reference.exact.out);
            reference.lse_tolerance += max_difference(&rounded.lse, &reference.exact.lse);
        }
        if let Some(sinks) = inputs.sinks() {
            reference.add_sinks(inputs.problem().o_dtype, sinks);
        }
        reference
    }

    /// The tolerances of products of eight bits. The naive result has the roundings of these products, and
    /// the kernel may place some roundings differently: it computes scores and exponentials in f32.
    fn of_eight_bits(inputs: &Inputs) -> Self {
        let (dtype, exact) = (inputs.problem().o_dtype, without_sinks(inputs));
        let is_luck = inputs.problem().precision == Precision::Fp8 && exact.out.len() < FEW_ELEMENTS;
        let stretches = STRETCHES.iter().take(if is_luck { STRETCHES.len() } else { 1 });
        let all: Vec<_> = stretches.map(|stretch| eight_bits(inputs, *stretch)).collect();
        // `Int8F16` sums rounded probabilities, as kernels of 16 bits do.
        let (least, of_rounded) = match inputs.problem().precision {
            Precision::Fp8 => (of_cut_sums(&exact.lse), 0.0),
            Precision::Int8F16 => (0.0, unit_roundoff(dtype)),
            _ => (0.0, 0.0),
        };
        let lse_error = all.iter().map(|own| max_difference(&own.lse, &exact.lse)).fold(least, f64::max);
        let error = |own: &Outputs| max_difference(&own.out, &exact.out);
        let rounded = all.iter().max_by(|a, b| error(a).total_cmp(&error(b))).expect("a stretch");
        // Of equal scores, probabilities have no error, but O is rounded once.
        let mut stored = rounded.clone();
        stored.out.iter_mut().for_each(|x| *x = decode(dtype, encode(dtype, *x)).into());
        let reference = Self::of_results(exact, &stored, dtype);
        let exact = || reference.exact.out.iter();
        let differences = |own: &Outputs| own.out.iter().zip(exact()).map(|(a, b)| difference(*a, *b)).sum();
        let stored: f64 = exact().map(|exact| unit_roundoff(dtype) * exact.abs() + 1e-5).sum();
        let sum_tolerance = 1.25 * all.iter().map(differences).fold(0.0, f64::max) + stored;
        let lse_tolerance = of_sums(&reference.exact.lse) + 2.0 * lse_error + of_rounded;
        Reference { lse_tolerance, sum_tolerance, ..reference }
    }

    /// Returns the reference of rows that see no key. Their O is exactly 0, and their LSE is the sink or
    /// -inf.
    pub fn without_keys(shape: [usize; 4], dtype: DType, sinks: Option<&[f32]>) -> Self {
        let exact = Outputs::without_keys(shape);
        let mut all = Reference {
            exact,
            naive_error: 0.0,
            tolerance: 0.0,
            lse_tolerance: 1e-5,
            sum_tolerance: f64::INFINITY,
        };
        sinks.iter().for_each(|sinks| all.add_sinks(dtype, sinks));
        all
    }

    /// Permits one more rounding, for a result that is merged from states of shared prefixes: kernels round
    /// the O of each of these states to the inputs' type. The weighted sum of the states' magnitudes is at
    /// most that of V, times `scale`.
    #[must_use]
    pub fn of_merged_states(self, inputs: &Inputs, scale: f32) -> Self {
        let largest = attention(inputs, OnMagnitudes).out.into_iter().fold(0.0, f64::max) * f64::from(scale);
        let rounding = unit_roundoff(inputs.problem().o_dtype) * largest;
        Reference { tolerance: self.tolerance + rounding, ..self }
    }

    /// The tolerances of an exact result and of a naive result in `dtype`.
    pub(super) fn of_results(exact: Outputs, naive: &Outputs, dtype: DType) -> Self {
        let naive_error = max_difference(&naive.out, &exact.out);
        Reference {
            tolerance: allowed(naive_error, &exact.out, dtype),
            naive_error,
            // Kernels round the probabilities to the inputs' type before they sum them and multiply them with
            // V. In O, the error of the sum cancels. In the logarithm of the sum, an error of at most one
            // rounding remains.
            lse_tolerance: of_sums(&exact.lse) + unit_roundoff(dtype),
            sum_tolerance: f64::INFINITY,
            exact,
        }
    }

    /// Applies `rule` to the tolerance, for a result with these values.
    #[must_use]
    pub(super) fn by(self, rule: Rule, dtype: DType, values: impl Iterator<Item = f64>) -> Self {
        let roundings = match rule {
            Rule::Tolerance | Rule::Bounds => 0.0,
            Rule::Few => two_roundings(dtype, values),
        };
        Reference { tolerance: self.tolerance.max(roundings), ..self }
    }

    /// [`Reference::judge_rows`] with an LSE alone, if given.
    pub fn judge(&self, out: &HostTensor, lse: Option<&[f32]>) -> Option<Verdict> {
        self.judge_rows(out, lse.into())
    }

    /// Judges O and the given outputs of rows (contiguous, `[batch, heads, rows]`). Returns `None` if a shape
    /// differs from the reference's shape.
    ///
    /// O follows FlashAttention's rule: `max|out - exact| <= 2 * max|naive - exact| + 1e-5`, with the
    /// addition of [`Reference::tolerance`]. O of a row that
    /// sees no key must be exactly 0. LSE follows [`Reference::lse_tolerance`]; -inf equals only -inf.
    pub fn judge_rows(&self, out: &HostTensor, values: RowOutputs<Option<&[f32]>>) -> Option<Verdict> {
        let shape @ [_, rows, heads, _] = self.exact.shape;
        let values = values.zip(self.exact.rows());
        let differs = |(got, want): (Option<&[f32]>, &[f64])| got.is_some_and(|got| got.len() != want.len());
        if out.shape() != shape || values.named().any(|(_, pair)| differs(pair)) {
            return None;
        }
        // An error of the scores shifts the weights of keys.
        let tolerances = RowOutputs {
            lse: self.lse_tolerance,
            max_logits: of_sums(&self.exact.max_logits),
            entropy: of_sums(&self.exact.entropy) + of_sums(&self.exact.max_logits),
        };
        let sees_no_key = |([batch, row, head, _], ..): &Element| {
            self.exact.lse[(batch * heads + head) * rows + row] == f64::NEG_INFINITY
        };
        let all = || elements(out, &self.exact.out);
        let unseen = worst("o", 0.0, all().filter(sees_no_key)).filter(|worst| !worst.passed());
        let out = unseen.or_else(|| self.sum_of_errors(all()).filter(|sum| !sum.passed()));
        let out = out.or_else(|| worst("o", self.tolerance, all()));
        let out = out.unwrap_or(Worst::nothing("o", self.tolerance));
        let judged = |name, ((got, want), tolerance): ((Option<&[f32]>, &[f64]), f64)| {
            let worst = worst(name, tolerance, of_rows(got?, want, shape));
            Some(worst.unwrap_or(Worst::nothing(name, tolerance)))
        };
        Some(Verdict { out, rows: values.zip(tolerances).map(judged), strays: 0 })
    }
}

impl Reference {
    /// Returns the sum of the errors of O as one error, if this sum has a tolerance.
    fn sum_of_errors(&self, all: impl Iterator<Item = Element>) -> Option<Worst> {
        let tolerance = Some(self.sum_tolerance).filter(|most| most.is_finite())?;
        let (mut got, mut want, mut error) = (0.0, 0.0, 0.0);
        for (_, x, exact) in all {
            (got, want, error) = (got + x.abs(), want + exact.abs(), error + difference(x, exact));
        }
        Some(Worst { got, want, error, ..Worst::nothing("sum of o", tolerance) })
    }
}

/// Returns the largest error of an output of rows from f32 sums.
fn of_sums(values: &[f64]) -> f64 {
    let largest = values.iter().filter(|x| x.is_finite()).fold(0.0, |a: f64, x| a.max(x.abs()));
    LSE_ABSOLUTE + LSE_RELATIVE * largest
}

/// Returns the smallest error that the scores of e4m3 always have: two units of 13 bits of fraction. With few
/// rows, the error of the naive result may be small by luck.
fn of_cut_sums(values: &[f64]) -> f64 {
    let largest = values.iter().filter(|x| x.is_finite()).fold(0.0, |a: f64, x| a.max(x.abs()));
    largest * 2.0 / f64::from(1 << 13)
}

/// Returns the tolerance of a tensor with these exact values, for this error of naive attention. With few
/// elements, the error may be small by luck.
pub(super) fn allowed(naive_error: f64, exact: &[f64], dtype: DType) -> f64 {
    let is_few = exact.len() < ENOUGH_ELEMENTS;
    let finite = || exact.iter().copied().filter(|x| x.is_finite());
    let roundings = if is_few { two_roundings(dtype, finite()) } else { 0.0 };
    (2.0 * naive_error + 1e-5).max(roundings)
}

/// Returns the largest error from rounding probabilities and results to `dtype`. NaN values are ignored.
pub(super) fn two_roundings(dtype: DType, values: impl Iterator<Item = f64>) -> f64 {
    2.0 * unit_roundoff(dtype) * values.fold(0.0, |largest: f64, x| largest.max(x.abs())) + 1e-5
}

/// Returns `|a - b|`, or 0 for equal infinities, infinite for NaN.
fn difference(a: f64, b: f64) -> f64 {
    let difference = if a == b { 0.0 } else { (a - b).abs() };
    if difference.is_nan() { f64::INFINITY } else { difference }
}

/// Returns the largest [`difference`].
pub(super) fn max_difference(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| difference(*a, *b)).fold(0.0, f64::max)
}

/// An element's position, value and exact value.
pub(super) type Element = ([usize; 4], f64, f64);

/// Returns the elements of O.
pub(super) fn elements(out: &HostTensor<'_>, want: &[f64]) -> impl Iterator<Item = Element> {
    let [batches, rows, heads, columns] = out.shape();
    (0..batches * rows * heads).flat_map(move |i| {
        let [batch, row, head] = [i / (rows * heads), i / heads % rows, i % heads];
        let pairs = out.values(batch, row, head).zip(&want[i * columns..]).enumerate();
        pairs.map(move |(column, (got, want))| ([batch, row, head, column], f64::from(got), *want))
    })
}

/// Returns the elements of an output of rows, for O of this shape.
pub(super) fn of_rows(
    got: &[f32],
    want: &[f64],
    [_, rows, heads, _]: [usize; 4],
) -> impl Iterator<Item = Element> {
    got.iter().zip(want).enumerate().map(move |(i, (got, want))| {
        ([i / (heads * rows), i % rows, i / rows % heads, 0], f64::from(*got), *want)
    })
}

/// Returns the element with the largest error.
pub(super) fn worst(
    tensor: &'static str,
    tolerance: f64,
    elements: impl Iterator<Item = Element>,
) -> Option<Worst> {
    elements
        .map(|([batch, row, head, column], got, want)| {
            let error = difference(got, want);
            Worst { tensor, batch, row, head, column, got, want, error, tolerance }
        })
        .reduce(|a, b| if b.error > a.error { b } else { a })
}
