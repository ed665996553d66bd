//! Random problems on tensors of any shape, strides, mask and type.
use super::{Fuzz, Limits, below, one_in, pick};
use crate::alibi::Slopes;
use crate::arithmetic::encode;
use crate::bounds::score_limit;
use crate::extras::Extras;
use crate::inputs::Random;
use crate::memory::Memory;
use crate::place::Place;
use crate::tolerance::{ENOUGH_ELEMENTS, Rule};
use ferroflash::kernels::{AttnInfo, Class, Isa, MaskKind, plain};
use ferroflash::lineage::CONFIGURATIONS;
use ferroflash::plan::Problem;
use ferroflash::request::{Alignment, Mask, Precision};
use ferroflash::{Capabilities, DType};
use std::f32::consts::LOG2_E;

/// Draws the problem of `seed`. A device with these capabilities can solve the problem.
pub(super) fn draw(seed: u64, limits: Limits, capabilities: &Capabilities) -> Fuzz {
    let random = &mut Random::new(seed);
    let mut problem = problem(random, limits);
    let wide = limits.decades > 0 && one_in(random, 3);
    let wide = wide.then(|| magnitudes(random, limits.decades.into(), &mut problem));
    let config = if one_in(random, 2) { config(random, &problem, capabilities) } else { None };
    let memory = memory(random, problem, wide.unwrap_or([1.0; 3]));
    // TMA takes no tensor with a stride of 0.
    let config = config.filter(|name| {
        !repeats(&memory) || plain(Isa::Sm90a, Class::Dense).all(|e| e.contract.symbol != *name)
    });
    let Problem { batch, seqlen_q, heads_q, head_dim_v, .. } = problem;
    let rows = batch * seqlen_q * heads_q;
    let is_small = rows * head_dim_v < ENOUGH_ELEMENTS;
    let rule = match (wide, &memory.extras.slopes) {
        (None, None) if is_small => Rule::Few,
        (None, None) => Rule::Tolerance,
        _ => Rule::Bounds,
    };
    let text = words(&memory, config, wide);
    Fuzz { seed, family: None, config, wide, is_small, rule, rows, work: Box::new(memory), text }
}

/// Draws the problem of `seed` with products of eight bits. The planner chooses the kernel.
pub(super) fn eight_bits(seed: u64, limits: Limits) -> Fuzz {
    let random = &mut Random::new(seed);
    let of_e4m3 = limits.of_e4m3.filter(|_| one_in(random, 2));
    let (precision, most) = of_e4m3.map_or((Precision::Int8F16, 128), |precision| (precision, 256));
    let most = if one_in(random, 2) { 64 } else { most };
    let columns = 8 * (1 + below(random, most / 8));
    let problem = problem(random, limits).head_dim(columns).precision(precision);
    // Hopper's kernels take no slopes, and TMA no stride of 0.
    let is_hoppers = precision == Precision::Fp8;
    let problem = problem.alibi(problem.alibi && !is_hoppers);
    let memory = loop {
        let memory = memory(random, problem, [1.0; 3]);
        if !(is_hoppers && repeats(&memory)) {
            break memory;
        }
    };
    let Problem { batch, seqlen_q, heads_q, .. } = problem;
    let rows = batch * seqlen_q * heads_q;
    let is_small = rows * columns < ENOUGH_ELEMENTS;
    let rule = if is_small { Rule::Few } else { Rule::Tolerance };
    let text = format!("{}: {}", super::EIGHT_BITS, words(&memory, None, None));
    let family = Some(super::EIGHT_BITS);
    Fuzz { seed, family, config: None, wide: None, is_small, rule, rows, work: Box::new(memory), text }
}

fn words(memory: &Memory, config: Option<&str>, wide: Option<[f64; 3]>) -> String {
    let Memory { problem, q, k, v, o, .. } = memory;
    let mut text = format!("{problem}, kernel {}", config.unwrap_or("the planner's"));
    for (name, place) in [("q", q), ("k", k), ("v", v), ("o", o)] {
        text += &format!(", {name} at {} strides {:?}", place.offset, place.strides);
    }
    let wide = wide.map(|[q, k, v]| format!(", standard deviations {q:.3e}, {k:.3e}, {v:.3e}"));
    text + &wide.unwrap_or_default()
}

fn problem(random: &mut Random, limits: Limits) -> Problem {
    let length = |random: &mut Random| match below(random, 4) {
        0 => pick(random, &[1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129]).min(limits.seqlen),
        _ => 1 + below(random, limits.seqlen),
    };
    let side = |random: &mut Random| {
        if one_in(random, 4) { None } else { Some(below(random, limits.seqlen) as u32) }
    };
    let group = 1 + below(random, limits.heads);
    let heads_k = 1 + below(random, limits.heads / group);
    let batch = 1 + below(random, limits.heads.min(3));
    let (seqlen_q, seqlen_k) = (length(random), length(random));
    let seqlen_k = if one_in(random, 3) { seqlen_q } else { seqlen_k };
    let mask = match below(random, 5) {
        0 | 1 => Mask::Full,
        2 | 3 => Mask::Causal,
        _ => Mask::Window { left: side(random), right: side(random) },
    };
    let wide = if one_in(random, 2) { 64 } else { 256 };
    let mut problem = Problem::new(
        pick(random, &[DType::F16, DType::F16, DType::Bf16]),
        batch,
        seqlen_q,
        heads_k * group,
        8 * (1 + below(random, wide / 8)),
    )
    .seqlen_k(seqlen_k)
    .heads_k(heads_k)
    .mask(mask)
    .alignment(pick(random, &[Alignment::BottomRight, Alignment::TopLeft]));
    problem.scale = one_in(random, 3).then(|| 0.02 + below(random, 64) as f32 / 128.0);
    problem.softcap = one_in(random, 6).then(|| 1.0 + below(random, 50) as f32);
    if one_in(random, 6) {
        problem = problem.head_dim(8 + 8 * below(random, 32)).head_dim_v(8 + 8 * below(random, 32));
    }
    problem.alibi(one_in(random, 6))
}

/// Draws a scale and a softcap that the planner accepts, and standard deviations of Q, K and V that the type
/// can represent. Rows that are [not judged](Bounds::not_judged) are rare.
fn magnitudes(random: &mut Random, decades: f64, p: &mut Problem) -> [f64; 3] {
    let between = |random: &mut Random, least: f64, most: f64| {
        let [least, most] = [least.log10().max(-decades), most.log10().min(decades)];
        10f64.powf(least + (most - least) * below(random, 1 << 20) as f64 / f64::from(1 << 20))
    };
    // Inputs are normally distributed. Even an input of 8 standard deviations is below the largest number of
    // the type.
    let (least, most) = if p.dtype == DType::F16 { (1e-4, 65504.0 / 8.0) } else { (1e-37, 4e37) };
    loop {
        let sigmas: [f64; 3] = std::array::from_fn(|_| between(random, least, most));
        let products = sigmas[0] * sigmas[1] * (p.head_dim as f64).sqrt();
        // In half of the problems, scores are neither all equal nor dominated by one key. In a quarter,
        // scores come close to the limit.
        let scale = match below(random, 4) {
            0 | 1 => 10f64.powi(below(random, 3) as i32) / products,
            2 => score_limit(p.dtype) / f64::from(16 << below(random, 4)) / products,
            _ => between(random, 1e-30, 1e30),
        } as f32;
        let softcap = one_in(random, 3).then(|| between(random, 1e-30, 1e30) as f32);
        let accepted = match softcap {
            None => (scale * LOG2_E).is_normal(),
            Some(cap) => (cap * LOG2_E).is_normal() && (scale / cap).is_normal(),
        };
        let beside_slopes = (1e-20..1e20).contains(&softcap.unwrap_or(scale));
        let accepted = accepted && (beside_slopes || !p.alibi);
        let scores = softcap.map_or(f64::INFINITY, f64::from).min(products * f64::from(scale));
        let judged = scores * 8.0 < score_limit(p.dtype) && products * 64.0 < f64::from(f32::MAX);
        let bounded = scale <= ferroflash::request::MAX_SCALE;
        if accepted && bounded && scale.is_normal() && (judged || one_in(random, 16)) {
            (p.scale, p.softcap) = (Some(scale), softcap);
            return sigmas;
        }
    }
}

/// Returns whether a stride of 0 repeats a row, a head or a batch of an input.
fn repeats(memory: &Memory) -> bool {
    let repeats = |place: &Place| {
        place.shape.iter().zip(place.strides).take(3).any(|(extent, stride)| *extent > 1 && stride == 0)
    };
    [&memory.q, &memory.k, &memory.v].into_iter().any(repeats)
}

/// Returns a kernel that solves `p` and runs on the device.
fn config(random: &mut Random, p: &Problem, capabilities: &Capabilities) -> Option<&'static str> {
    let mask = p.mask_kind();
    let solves = |e: &AttnInfo| {
        e.dtype == p.dtype
            && (e.mask == mask || e.mask == MaskKind::Local)
            && e.takes_columns(p.columns())
            && capabilities.runs(&e.contract).is_ok()
            && !(e.has_maps() && p.alibi)
    };
    let own = plain(Isa::Sm80, Class::Dense)
        .chain(plain(Isa::Sm90a, Class::Dense))
        .filter(|e| solves(e))
        .map(|e| e.contract.symbol);
    let named = CONFIGURATIONS.iter().filter(|c| c.entry(mask).is_ok_and(solves)).map(|c| c.name);
    let all: Vec<_> = own.chain(named).collect();
    (!all.is_empty()).then(|| pick(random, &all))
}

/// Lays out the tensors randomly: any order of batch, rows and heads; gaps between them; keys and values in
/// one or two buffers; inputs that a stride of 0 repeats.
fn memory(random: &mut Random, problem: Problem, sigmas: [f64; 3]) -> Memory {
    let Problem { batch, heads_q, dtype, .. } = problem;
    let [q, k, v, o] = problem.shapes();
    let q = place(random, 0, 0, q, true);
    let k = place(random, 1, 0, k, true);
    let v = match one_in(random, 2) {
        true => place(random, 1, (k.offset + k.span()).next_multiple_of(8), v, true),
        false => place(random, 2, 0, v, true),
    };
    let o = Place { offset: 0, ..place(random, 0, 0, o, false) };
    let fill =
        |buffer: usize, len| (0..len).map(|_| encode(dtype, sigmas[buffer] * random.normal())).collect();
    let memory = Memory::filled(problem, [q, k, v, o], fill);
    let seed = random.bits();
    let slopes = problem.alibi.then(|| Slopes::random(seed, batch, heads_q, 8));
    let extras = Extras { slopes, ..Extras::random(&problem, seed) };
    Memory { extras, ..memory }
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
