//! Gradients of attention on the CPU, in f64 and with the roundings of 16-bit steps.
use super::arithmetic::{decode, encode, unit_roundoff};
use super::attention::Inputs;
use super::tensor::HostTensor;
use super::tolerance::{Worst, allowed, max_difference, worst};
use super::work::Judgement;
use head::of_head;
use rayon::prelude::*;

mod edges;
mod head;
mod scored;
mod sequences;
mod summed;
mod work;

pub use edges::{backward_edges, is_modified};
pub(crate) use scored::Scored;
pub use summed::SummedGradient;
pub use work::BackwardMemory;

/// The gradients of the outputs of an attention.
#[derive(Clone, Copy, Debug)]
pub struct Upstream<'a> {
    /// The gradient of O, with O's shape.
    pub d_o: HostTensor<'a>,
    /// The gradient of the LSE, `[batch, heads, rows]`; `None` for zeros.
    pub d_lse: Option<&'a [f32]>,
}

/// The names of the gradients, in their order.
pub(crate) const NAMES: [&str; 3] = ["dq", "dk", "dv"];

/// The name of the gradient of sinks.
pub(crate) const SINKS: &str = "dsinks";

/// The name of the gradient of a bias.
pub(crate) const BIAS: &str = "dbias";

/// The name of the gradient of a table.
pub(crate) const TABLE: &str = "dtable";

/// The gradients of Q, K and V, contiguous `[batch, rows, heads, columns]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// The gradients.
    pub values: [Vec<f64>; 3],
    /// For each gradient: the largest sum of the magnitudes of the products whose sum an element is.
    sums: [f64; 3],
    /// The gradients of the sinks, one per query head, if there are sinks.
    pub sinks: Option<Vec<SummedGradient>>,
    /// The gradients of the entries of a table that the scores read, or of the elements of a bias.
    pub table: Vec<SummedGradient>,
}

impl Gradients {
    /// Computes the gradients in f64.
    pub fn exact(inputs: &Inputs<'_>, upstream: &Upstream<'_>) -> Self {
        Self::exact_of(inputs, inputs, upstream)
    }

    fn exact_of(scored: &impl Scored, inputs: &Inputs<'_>, upstream: &Upstream<'_>) -> Self {
        gradients(scored, inputs, upstream, |x| x)
    }

    /// Computes the gradients like an implementation in separate 16-bit steps: S, P, O, dP, dS and the
    /// gradients of Q, K and V are tensors of the inputs' type, as in FlashAttention's own tests. The sink is
    /// one of the columns of P and dS. Each query head has its own dK and dV, whose sums over the heads of a
    /// key head are the gradients: so PyTorch differentiates the repeated heads of K and V.
    pub fn naive(inputs: &Inputs<'_>, upstream: &Upstream<'_>) -> Self {
        Self::naive_of(inputs, inputs, upstream)
    }

    fn naive_of(scored: &impl Scored, inputs: &Inputs<'_>, upstream: &Upstream<'_>) -> Self {
        let dtype = inputs.problem().dtype;
        gradients(scored, inputs, upstream, |x| f64::from(decode(dtype, encode(dtype, x))))
    }
}

/// The exact gradients of a problem, and their tolerances: `2 max|naive - exact| + 1e-5 + 2^-24 S`, and for
/// few elements at least two roundings of the largest one, as for O (`allowed`). `S` is the largest sum of
/// the magnitudes of which an element is the sum. A row that sees one key has dS = 0 in exact arithmetic, and
/// the difference of two rounded numbers in f32; the last term permits this difference.
#[derive(Clone, Debug)]
pub struct GradientReference {
    exact: Gradients,
    tolerances: [f64; 3],
    sink_tolerance: f64,
    table_tolerance: f64,
    /// The name of the gradient of the table's entries.
    table: &'static str,
}

impl GradientReference {
    /// Computes the exact gradients and the tolerances.
    pub fn new(inputs: &Inputs<'_>, upstream: &Upstream<'_>) -> Self {
        Self::of(inputs, inputs, upstream)
    }

    /// [`GradientReference::new`], with these scores of the inputs.
    pub(crate) fn of(scored: &impl Scored, inputs: &Inputs<'_>, upstream: &Upstream<'_>) -> Self {
        let exact = Gradients::exact_of(scored, inputs, upstream);
        let naive = Gradients::naive_of(scored, inputs, upstream);
        let dtype = inputs.problem().dtype;
        let tolerances = [0, 1, 2].map(|of| {
            let error = max_difference(&naive.values[of], &exact.values[of]);
            allowed(error, &exact.values[of], dtype) + exact.sums[of] * 2f64.powi(-24)
        });
        let summed = |of: fn(&Gradients) -> &[SummedGradient]| {
            summed::tolerance(of(&exact), of(&naive), inputs.problem().dtype)
        };
        let sink_tolerance = summed(|of| of.sinks.as_deref().unwrap_or_default());
        let (table, entry) = scored.of_entries();
        let largest = exact.table.iter().map(|of| of.value.abs()).fold(0.0, f64::max);
        let table_tolerance = summed(|of| &of.table) + 2.0 * unit_roundoff(entry) * largest;
        GradientReference { exact, tolerances, sink_tolerance, table_tolerance, table }
    }

    /// The tolerances of dQ, dK and dV.
    pub(crate) fn tolerances(&self) -> [f64; 3] {
        self.tolerances
    }

    /// Returns the element of each gradient with the largest error: of Q, K and V, and of sinks and of a
    /// table or a bias, if there are any. `None` is a gradient without rows.
    pub fn judge(
        &self,
        gradients: [Option<&HostTensor<'_>>; 3],
        [sinks, table]: [Option<&[f32]>; 2],
    ) -> Vec<Worst> {
        let of = |of: usize| {
            let gradient = gradients[of]?;
            let [batches, rows, heads, _] = gradient.shape();
            let all = (0..batches * rows * heads).map(|i| [i / heads / rows, i / heads % rows, i % heads]);
            let got = all.flat_map(|[batch, row, head]| {
                let values = gradient.values(batch, row, head).enumerate();
                values.map(move |(column, x)| ([batch, row, head, column], f64::from(x)))
            });
            let elements = got.zip(&self.exact.values[of]).map(|((at, got), want)| (at, got, *want));
            worst(NAMES[of], self.tolerances[of], elements)
        };
        let exact = self.exact.sinks.iter().flatten().enumerate().zip(sinks.unwrap_or_default());
        let heads = exact.map(|((head, want), got)| ([0, 0, head, 0], f64::from(*got), want.value));
        let entries = self.exact.table.iter().enumerate().zip(table.unwrap_or_default());
        let entries = entries.map(|((entry, want), got)| ([0, 0, 0, entry], f64::from(*got), want.value));
        let sinks = worst(SINKS, self.sink_tolerance, heads);
        let table = worst(self.table, self.table_tolerance, entries);
        (0..3).filter_map(of).chain(sinks).chain(table).collect()
    }
}

impl From<Vec<Worst>> for Judgement {
    fn from(all: Vec<Worst>) -> Self {
        all.into_iter().map(Judgement::from).fold(Judgement::default(), Judgement::and)
    }
}

fn gradients(
    scored: &impl Scored,
    inputs: &Inputs<'_>,
    upstream: &Upstream<'_>,
    round: impl Fn(f64) -> f64 + Copy + Sync,
) -> Gradients {
    match inputs.sequences {
        None => of_batches(scored, inputs, upstream, round),
        Some(all) => sequences::gradients(inputs, all, |index, one, queries| {
            let [_, rows, ..] = inputs.q().shape();
            let heads = upstream.d_lse.iter().flat_map(|d_lse| d_lse.chunks(rows));
            let d_lse: Vec<_> = heads.flat_map(|head| &head[queries.clone()]).copied().collect();
            let d_o = upstream.d_o.rows(queries.clone());
            let upstream = Upstream { d_o, d_lse: upstream.d_lse.map(|_| &d_lse[..]) };
            of_batches(&scored.in_sequence(index, one), one, &upstream, round)
        }),
    }
}

fn of_batches(
    scored: &impl Scored,
    inputs: &Inputs<'_>,
    upstream: &Upstream<'_>,
    round: impl Fn(f64) -> f64 + Copy + Sync,
) -> Gradients {
    let [batches, queries, heads, columns] = inputs.q().shape();
    let [_, keys, kv_heads, values] = inputs.v().shape();
    let group = heads / kv_heads;
    let all: Vec<_> = (0..batches * kv_heads)
        .into_par_iter()
        .map(|i| of_head(scored, inputs, upstream, [i / kv_heads, i % kv_heads], round))
        .collect();
    let [mut dq, mut dk, mut dv] =
        [queries * heads * columns, keys * kv_heads * columns, keys * kv_heads * values]
            .map(|elements| vec![0.0; batches * elements]);
    let mut sums = [0f64; 3];
    // Copies rows of one head to rows of all heads.
    let place = |to: &mut [f64], from: &[f64], [batch, head, heads]: [usize; 3], [rows, d]: [usize; 2]| {
        for (row, from) in from.chunks(d).enumerate() {
            let start = ((batch * rows + row) * heads + head) * d;
            to[start..start + d].iter_mut().zip(from).for_each(|(to, x)| *to = round(*x));
        }
    };
    let [mut sinks, mut table] =
        [heads, scored.entries()].map(|count| vec![SummedGradient::default(); count]);
    for (i, of) in all.iter().enumerate() {
        let (batch, head) = (i / kv_heads, i % kv_heads);
        for (sink, own) in sinks[head * group..].iter_mut().zip(&of.sinks) {
            sink.add(own);
        }
        of.table.iter().for_each(|(entry, own)| table[*entry].add(own));
        for (member, own) in of.dq.iter().enumerate() {
            place(&mut dq, own, [batch, head * group + member, heads], [queries, columns]);
        }
        place(&mut dk, &of.dk, [batch, head, kv_heads], [keys, columns]);
        place(&mut dv, &of.dv, [batch, head, kv_heads], [keys, values]);
        sums = [0, 1, 2].map(|at| sums[at].max(of.sums[at]));
    }
    Gradients { values: [dq, dk, dv], sums, sinks: inputs.sinks().map(|_| sinks), table }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::exact;
    use crate::case::{Case, Pages};
    use crate::place::Layout;
    use ferroflash::DType;
    use ferroflash::request::Mask;

    /// The gradients agree with the differences of the loss, the sum of dO O + dLSE LSE.
    #[test]
    fn gradients_are_differences_of_the_loss() {
        let base = Case { queries: 5, heads: [2, 1], head_dim: 8, ..Case::new([7, 7]) };
        let base = Case { pages: Pages::Tensors(Layout::Bshd), ..base };
        let window = Mask::Window { left: Some(2), right: Some(1) };
        for case in [
            base.clone(),
            Case { mask: Mask::Causal, softcap: Some(2.0), ..base.clone() },
            Case { mask: window, alibi: true, seed: 2, head_dim_v: Some(16), ..base.clone() },
            Case { bias: Some(DType::F32), mask: Mask::Chunked { chunk: 3 }, ..base.clone() },
            Case { mask: Mask::Causal, queries: 9, sinks: true, head_dim: 24, head_dim_v: Some(8), ..base },
        ] {
            let mut memory = BackwardMemory::new(&case.clone().backward(true));
            // Multiples of 1/64 stay f16 numbers after a step of 1/128.
            for bits in memory.forward.buffers.iter_mut().flatten() {
                let x = (f64::from(decode(DType::F16, *bits)) * 64.0).round().clamp(-128.0, 128.0) / 64.0;
                *bits = encode(DType::F16, x);
            }
            let logits = memory.forward.extras.sinks.iter_mut().flatten();
            logits.zip([0.5, -0.75]).for_each(|(own, logit)| *own = logit);
            let bias = memory.forward.extras.bias.iter_mut();
            bias.for_each(|bias| bias.map(|_, x| (x * 64.0).round() / 64.0));
            let gradients = Gradients::exact(&memory.forward.inputs().expect("valid"), &memory.upstream());
            let upstream = memory.upstream().d_o;
            let rows = (0..4 * case.queries).map(|i| [i / case.queries / 2, i / 2 % case.queries, i % 2]);
            let values = rows.flat_map(|[batch, row, head]| upstream.values(batch, row, head));
            let d_o: Vec<_> = values.map(f64::from).collect();
            let d_lse = memory.d_lse.clone().expect("asked for");
            let loss = |memory: &BackwardMemory| {
                let outputs = exact(&memory.forward.inputs().expect("valid"));
                let of_o: f64 = outputs.out.iter().zip(&d_o).map(|(o, d)| o * d).sum();
                let seen = outputs.lse.iter().zip(&d_lse).filter(|(lse, _)| lse.is_finite());
                of_o + seen.map(|(lse, d)| lse * f64::from(*d)).sum::<f64>()
            };
            for (head, gradient) in gradients.sinks.iter().flatten().enumerate() {
                let difference = |step: f32| {
                    let loss_at = |step: f32| {
                        let mut memory = memory.clone();
                        memory.forward.extras.sinks.as_mut().expect("there")[head] += step;
                        loss(&memory)
                    };
                    (loss_at(step) - loss_at(-step)) / f64::from(2.0 * step)
                };
                let exact = (4.0 * difference(1.0 / 128.0) - difference(1.0 / 64.0)) / 3.0;
                let error = (gradient.value - exact).abs();
                assert!(error < 1e-6, "{case}: sink {head}: {gradient:?}, should be {exact}");
            }
            for (element, gradient) in gradients.table.iter().enumerate() {
                let difference = |step: f32| {
                    let loss_at = |step: f32| {
                        let mut memory = memory.clone();
                        let bias = memory.forward.extras.bias.as_mut().expect("there");
                        bias.map(|i, x| if i == element { x + step } else { x });
                        loss(&memory)
                    };
                    (loss_at(step) - loss_at(-step)) / f64::from(2.0 * step)
                };
                let exact = (4.0 * difference(1.0 / 128.0) - difference(1.0 / 64.0)) / 3.0;
                let error = (gradient.value - exact).abs();
                assert!(error < 1e-6, "{case}: bias {element}: {gradient:?}, should be {exact}");
            }
            for (buffer, gradient) in gradients.values.iter().enumerate() {
                for at in (0..gradient.len()).step_by(11) {
                    let old = memory.forward.buffers[buffer][at];
                    let mut difference = |step: f64| {
                        let mut at_step = |step: f64| {
                            let moved = f64::from(decode(DType::F16, old)) + step;
                            memory.forward.buffers[buffer][at] = encode(DType::F16, moved);
                            loss(&memory)
                        };
                        (at_step(step) - at_step(-step)) / (2.0 * step)
                    };
                    // Richardson's extrapolation of two central differences.
                    let exact = (4.0 * difference(1.0 / 128.0) - difference(1.0 / 64.0)) / 3.0;
                    memory.forward.buffers[buffer][at] = old;
                    let (name, error) = (NAMES[buffer], (gradient[at] - exact).abs());
                    assert!(error < 1e-6, "{case}: {name}[{at}] is {}, should be {exact}", gradient[at]);
                }
            }
        }
    }

    /// A bias of -inf hides a key. A bias of NaN reaches the gradients of its query, as it reaches O.
    #[test]
    fn a_bias_of_nan_hides_no_key() {
        let forward = Case { queries: 5, heads: [2, 1], head_dim: 8, ..Case::new([7]) };
        let forward = Case { pages: Pages::Tensors(Layout::Bshd), bias: Some(DType::F32), ..forward };
        let mut memory = BackwardMemory::new(&forward.backward(false));
        for (value, is_nan) in [(f32::NEG_INFINITY, false), (f32::NAN, true)] {
            let bias = memory.forward.extras.bias.as_mut().expect("asked for");
            bias.map(|i, x| if i == 0 { value } else { x });
            let gradients = Gradients::exact(&memory.forward.inputs().expect("valid"), &memory.upstream());
            let has_nan = gradients.values.each_ref().map(|all| all.iter().any(|x| x.is_nan()));
            assert_eq!(has_nan, [is_nan; 3], "a bias of {value}");
        }
    }

    /// Naive gradients beyond f16 are infinite, and NaN behind another infinity: no gradient has a bound.
    #[test]
    fn gradients_beyond_their_type_are_not_judged() {
        let forward = Case { queries: 5, heads: [2, 1], head_dim: 8, ..Case::new([7]) };
        let forward = Case { pages: Pages::Tensors(Layout::Bshd), ..forward };
        let mut memory = BackwardMemory::new(&forward.backward(false));
        memory.d_o.fill(encode(DType::F16, 6e4));
        let reference = GradientReference::new(&memory.forward.inputs().expect("valid"), &memory.upstream());
        assert_eq!(reference.tolerances, [f64::INFINITY; 3]);
        let bits: [Vec<u16>; 3] =
            [0, 1, 2].map(|of| reference.exact.values[of].iter().map(|x| encode(DType::F16, *x)).collect());
        let shapes = memory.gradients.map(|place| place.shape);
        let tensor = |of: usize| HostTensor::bshd(&bits[of], DType::F16, shapes[of]).expect("fits");
        let judgement =
            Judgement::from(reference.judge([0, 1, 2].map(tensor).each_ref().map(Some), [None; 2]));
        assert_eq!((judgement.failures.len(), judgement.unbounded), (3, 3), "{judgement:?}");
        // An error that is proven comes first.
        for all in [judgement.clone().and(Judgement::outside(1)), Judgement::outside(1).and(judgement)] {
            assert_eq!((all.failures.len(), all.unbounded), (4, 3), "{all:?}");
            assert_eq!(all.failures[0], "1 elements outside of the output were written");
        }
    }
}
