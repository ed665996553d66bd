//! Memory layouts of random problems.
use super::{below, one_in};
use crate::alibi::Slopes;
use crate::arithmetic::encode;
use crate::extras::Extras;
use crate::inputs::Random;
use crate::memory::{Memory, Place};
use crate::told::Told;
use ferroflash::plan::Problem;

/// Lays out the tensors randomly: any order of batch, rows and heads; gaps between them; keys and values in
/// one or two buffers; inputs that a stride of 0 repeats.
pub(super) fn memory(random: &mut Random, problem: Problem, sigmas: [f64; 3]) -> Memory {
    let Problem { batch, heads_q, dtype, .. } = problem;
    let [q, k, v, o] = problem.shapes();
    let q = place(random, 0, 0, q, true);
    let k = place(random, 1, 0, k, true);
    let v = match one_in(random, 2) {
        true => place(random, 1, (k.offset + k.span()).next_multiple_of(8), v, true),
        false => place(random, 2, 0, v, true),
    };
    let o = Place { offset: 0, ..place(random, 0, 0, o, false) };
    let len = |buffer| {
        let own = [q, k, v].into_iter().filter(|place| place.buffer == buffer);
        own.map(|place| place.offset + place.span()).max().unwrap_or(0)
    };
    let mut numbers = |sigma: f64, count: usize| -> Vec<u16> {
        (0..count).map(|_| encode(dtype, sigma * random.normal())).collect()
    };
    let buffers = (0..=v.buffer).map(|buffer| numbers(sigmas[buffer], len(buffer))).collect();
    let told = vec![Told::Filled];
    let extras = Extras::random(&problem, random.clone().bits());
    let memory = Memory { problem, buffers, q, k, v, o, slopes: None, sequences: None, told, extras };
    match problem.alibi {
        true => memory.with_slopes(Slopes::random(random.bits(), batch, heads_q, 8)),
        false => memory,
    }
}

fn place(random: &mut Random, buffer: usize, start: usize, shape: [usize; 4], input: bool) -> Place {
    let mut strides = [0, 0, 0, 1];
    let mut dims = [0, 1, 2];
    for last in [2, 1] {
        dims.swap(last, below(random, last + 1));
    }
    let mut step = shape[3];
    for dim in dims {
        if input && dim != 1 && one_in(random, 10) {
            continue;
        }
        step += if one_in(random, 3) { 8 * below(random, 5) } else { 0 };
        strides[dim] = step as i64;
        step *= shape[dim];
    }
    let offset = start + if one_in(random, 3) { 8 * below(random, 9) } else { 0 };
    Place { buffer, offset, shape, strides }
}
