//! Computes the expected outputs of a case: attention in f64, and the naive result that gives the tolerance.
//! Both computations use the functions that the kernel inlines.
use super::report::At;
use super::{Case, Definition, Failure, Tensors};
use crate::arithmetic::{decode, encode};
use crate::attention::Outputs;
use crate::tolerance::Reference;
use kernels_gpu::exact::{self, Copied, MaskFn, Sequence};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `each` for every sequence and head, as the kernel's functions see them, with the copies of device
/// memory. If a function panics, returns [`Failure::Panicked`].
pub(super) fn heads(
    case: &Case,
    copies: Vec<Copied>,
    mut each: impl FnMut(&Sequence) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let scale = (case.head_dim() as f32).sqrt().recip();
    exact::with_memory(copies, || {
        case.lengths.iter().enumerate().try_for_each(|(sequence, lengths)| {
            let lengths = lengths.map(|length| length as u32);
            (0..case.heads[0]).try_for_each(|head| {
                let of = exact::sequence(sequence as u32, head as u32, lengths, scale);
                let place = || format!("a function panics on sequence {sequence}, head {head}");
                caught(case, place, || each(&of))?
            })
        })
    })
}

/// Calls code of the caller. If the code panics, returns [`Failure::Panicked`] with the place.
pub(super) fn caught<R>(
    case: &Case,
    place: impl Fn() -> String,
    call: impl FnOnce() -> R,
) -> Result<R, Failure> {
    // After a panic, verification ends, so nothing uses a value that the panic left half changed.
    catch_unwind(AssertUnwindSafe(call)).map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let message = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Failure::Panicked { case: Box::new(case.clone()), place: place(), message: message.to_owned() }
    })
}

/// Checks the rules of masks.
pub(super) fn keeps_rules<M: MaskFn>(
    case: &Case,
    params: &M::Params,
    copies: Vec<Copied>,
) -> Result<(), Failure> {
    heads(case, copies, |of| match exact::broken::<M>(params, of) {
        None => Ok(()),
        Some(rule) => {
            let [sequence, head] = [of.index, of.head];
            Err(Failure::Broken { case: Box::new(case.clone()), sequence, head, rule })
        }
    })
}

/// The rows of one sequence and head.
pub(super) struct Rows<'a> {
    case: &'a Case,
    tensors: &'a Tensors,
    head: usize,
    start: [usize; 2],
}

impl<'a> Rows<'a> {
    pub(super) fn new(case: &'a Case, tensors: &'a Tensors, of: &Sequence) -> Self {
        Rows { case, tensors, head: of.head as usize, start: case.starts()[of.index as usize] }
    }

    /// The numbers of a row of Q (0), K (1) or V (2).
    fn row(&self, which: usize, row: usize) -> impl Iterator<Item = f64> + use<'a> {
        let (dtype, [heads_q, heads_k]) = (self.case.kernel.dtype, self.case.heads);
        let (heads, head) = match which {
            0 => (heads_q, self.head),
            _ => (heads_k, self.head / (heads_q / heads_k)),
        };
        let row = (self.start[which.min(1)] + row) * heads + head;
        let head_dim = self.case.head_dim();
        let bits = &self.tensors.0[which][row * head_dim..][..head_dim];
        bits.iter().map(move |bits| f64::from(decode(dtype, *bits)))
    }

    /// The products of a query and each key, whose elements become `change(element)`.
    pub(super) fn products(&self, query: usize, keys: i32, change: impl Fn(f64) -> f64) -> Vec<f64> {
        let q: Vec<_> = self.row(0, query).collect();
        let product = |key| q.iter().zip(self.row(1, key)).map(|(q, k)| q * change(k)).sum();
        (0..keys as usize).map(product).collect()
    }
}

/// Compares the functions with the definition, for every query and key.
pub(super) fn is_defined<M: MaskFn>(
    case: &Case,
    params: &M::Params,
    tensors: &Tensors,
    copies: Vec<Copied>,
    definition: Definition<'_>,
) -> Result<(), Failure> {
    heads(case, copies, |of| {
        let rows = Rows::new(case, tensors, of);
        for query in 0..of.queries {
            let p = query + of.shift;
            for (k, product) in (0..).zip(rows.products(query as usize, of.keys, |k| k)) {
                let function = f64::from(exact::score::<M>(params, of, product as f32, p, k));
                let should = definition(of, f64::from(product as f32) * f64::from(of.scale()), p, k);
                // The functions run in f32. An infinite score equals only itself.
                let is_near = should.is_finite() && (function - should).abs() <= 1e-4 * (1.0 + should.abs());
                if function != should && !is_near && !(function.is_nan() && should.is_nan()) {
                    return Err(Failure::Definition { at: At::new(case, of, [p, k]), function, should });
                }
            }
        }
        Ok(())
    })
}

/// Naive attention of a query, like the naive attention of the reference. Each step rounds to the kernel's
/// dtype, except the steps of the functions. Writes the row of O.
fn naive<M: MaskFn>(
    params: &M::Params,
    of: &Sequence,
    rows: &Rows<'_>,
    query: i32,
    values: &[Vec<f64>],
    o: &mut [f64],
) {
    let dtype = rows.case.kernel.dtype;
    let round = |x: f64| f64::from(decode(dtype, encode(dtype, x)));
    let scale = f64::from(of.scale());
    let products = rows.products(query as usize, of.keys, |k| round(k * scale));
    let score = |(k, product): (i32, f64)| {
        f64::from(exact::score::<M>(params, of, (round(product) / scale) as f32, query + of.shift, k))
    };
    let scores: Vec<_> = (0..).zip(products).map(score).collect();
    let sink = f64::from(M::sink(params, of, true));
    let most = scores.iter().copied().fold(sink, f64::max);
    o.fill(0.0);
    if most == f64::NEG_INFINITY {
        return;
    }
    let sum = (sink - most).exp() + scores.iter().map(|score| (score - most).exp()).sum::<f64>();
    for (score, value) in scores.iter().zip(values) {
        let weight = round((score - most).exp() / sum);
        o.iter_mut().zip(value).for_each(|(o, value)| *o += weight * value);
    }
    o.iter_mut().for_each(|o| *o = round(*o));
}

/// The outputs that a launch should write, with their tolerances.
pub(super) fn expected<M: MaskFn>(
    case: &Case,
    params: &M::Params,
    tensors: &Tensors,
    copies: Vec<Copied>,
) -> Result<Reference, Failure> {
    let ([batch, rows], heads_q, head_dim) = (case.q_shape(), case.heads[0], case.head_dim());
    let shape = [batch, rows, heads_q, head_dim];
    let [mut right, mut rounded] = [Outputs::without_keys(shape), Outputs::without_keys(shape)];
    heads(case, copies, |of| {
        let own = Rows::new(case, tensors, of);
        let values: Vec<Vec<f64>> = (0..of.keys as usize).map(|key| own.row(2, key).collect()).collect();
        for query in 0..of.queries {
            // Rows of all sequences follow one another, on dense tensors too.
            let row = own.start[0] + query as usize;
            let at = (row * heads_q + own.head) * head_dim..(row * heads_q + own.head + 1) * head_dim;
            let products = own.products(query as usize, of.keys, |k| k);
            let product = |k: i32| products[k as usize];
            let value = |k: i32, column: usize| values[k as usize][column];
            let p = query + of.shift;
            let lse = exact::attend::<M>(params, of, p, product, value, &mut right.out[at.clone()]);
            right.lse[(row / rows * heads_q + own.head) * rows + row % rows] = lse;
            naive::<M>(params, of, &own, query, &values, &mut rounded.out[at]);
        }
        Ok(())
    })?;
    Ok(Reference::of_results(right, &rounded, case.kernel.dtype))
}
