//! Random problems of any shape, strides, mask and type. Some are valid; others are valid problems to which
//! one fault was added.
use super::arithmetic::decode;
use super::bounds::{Bounds, score_limit};
use super::inputs::Random;
use super::memory::{Memory, Place};
use super::runner::Loaded;
use super::tolerance::{ENOUGH_ELEMENTS, Reference, two_roundings};
use ferroflash::driver::Harness;
use ferroflash::kernels::{ENTRIES, HOPPERS, MaskKind};
use ferroflash::lineage::CONFIGURATIONS;
use ferroflash::plan::Problem;
use ferroflash::request::{Alignment, AttentionRequest, Mask, Scratch};
use ferroflash::{Attention, Capabilities, DType, Error};
use std::f32::consts::LOG2_E;

mod drawn;
mod latent;
mod others;
mod parts;
mod places;
mod shared;

pub use others::{FAMILIES, Other};
use parts::*;

/// A random valid problem in memory, which may name its kernel. Equal seeds and limits give equal problems.
#[derive(Clone, Debug)]
pub struct Fuzz {
    /// The seed that drew the problem.
    pub seed: u64,
    /// The problem with its inputs.
    pub memory: Memory,
    /// The kernel's symbol, or a name of the lineage, or `None` if the planner chooses.
    pub config: Option<&'static str>,
    /// The standard deviations of Q, K and V, if the inputs, the scale and the softcap may have any
    /// magnitude. [`Bounds`] then judges the result instead of the tolerance rule.
    pub wide: Option<[f64; 3]>,
}

/// The result of a random problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Findings {
    /// Every error of the result, in words.
    pub failures: Vec<String>,
    /// Number of rows of O, over all heads.
    pub rows: usize,
    /// Number of rows that no rule judges ([`Bounds::not_judged`]).
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
}

impl Limits {
    /// Limits for a GPU.
    pub const GPU: Self =
        Limits { seqlen: 800, heads: 12, sequences: 16, products: 300 << 20, overlaps: true, decades: 30 };
    /// Limits for the simulator: a case takes a fraction of a second.
    pub const SIMULATOR: Self =
        Limits { seqlen: 150, heads: 3, sequences: 6, products: 30 << 20, overlaps: false, decades: 30 };
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

impl Fuzz {
    /// Draws the problem of `seed`. A device with these capabilities can solve the problem.
    pub fn new(seed: u64, limits: Limits, capabilities: &Capabilities) -> Self {
        let random = &mut Random::new(seed);
        let mut problem = problem(random, limits);
        let wide = limits.decades > 0 && one_in(random, 3);
        let wide = wide.then(|| magnitudes(random, limits.decades.into(), &mut problem));
        let config = if one_in(random, 2) { config(random, &problem, capabilities) } else { None };
        let memory = places::memory(random, problem, wide.unwrap_or([1.0; 3]));
        // TMA takes no tensor with a stride of 0.
        let config =
            config.filter(|name| !repeats(&memory) || HOPPERS.iter().all(|e| e.contract.symbol != *name));
        Fuzz { seed, memory, config, wide }
    }

    /// Returns whether O has fewer than [`ENOUGH_ELEMENTS`] elements. With few elements, `max|naive - exact|`
    /// may by luck be smaller than one rounding of a correct result. The rule then also permits an error of
    /// two roundings of the largest value, plus 1e-5.
    pub fn is_small(&self) -> bool {
        let Problem { batch, seqlen_q, heads_q, head_dim_v, .. } = self.memory.problem;
        batch * seqlen_q * heads_q * head_dim_v < ENOUGH_ELEMENTS
    }

    /// Runs the problem and judges the result by [`Bounds`] if the problem has `wide` inputs, otherwise by
    /// the tolerance rule. The tolerance is wider for a [small](Self::is_small) problem.
    ///
    /// # Errors
    /// Returns the errors of planning, launching and waiting. Each of these errors is a failure, because the
    /// problem is valid.
    pub fn run<D: Harness>(&self, attention: &Attention<D>) -> Result<Findings, Error> {
        let outcome = Loaded::new(attention, &self.memory, self.config)?.run()?;
        let wrong = |e: super::TensorError| Error::invalid("fuzz", self, e);
        let (inputs, Problem { dtype, .. }) = (self.memory.inputs().map_err(wrong)?, self.memory.problem);
        let (mut verdict, mut not_judged) = (None, 0);
        if self.wide.is_some() || self.memory.slopes.is_some() {
            let bounds = Bounds::new(&inputs);
            verdict = outcome.judge_within(&bounds, dtype);
            not_judged = bounds.not_judged();
        } else if let Some(mut judged) = outcome.judge(&Reference::new(&inputs), dtype) {
            if self.is_small() {
                let values = &self.memory.buffers[self.memory.v.buffer];
                let values = values.iter().map(|bits| f64::from(decode(dtype, *bits)));
                judged.out.tolerance = judged.out.tolerance.max(two_roundings(dtype, values));
            }
            verdict = Some(judged);
        }
        let failures = match verdict {
            Some(verdict) => verdict.failures().collect(),
            None => vec!["the output has another shape".into()],
        };
        Ok(Findings { failures, rows: self.memory.lse_shape().iter().product(), not_judged })
    }
}

impl std::fmt::Display for Fuzz {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Memory { problem, q, k, v, o, .. } = &self.memory;
        write!(f, "case {}: {problem}, kernel {}", self.seed, self.config.unwrap_or("the planner's"))?;
        for (name, place) in [("q", q), ("k", k), ("v", v), ("o", o)] {
            write!(f, ", {name} at {} strides {:?}", place.offset, place.strides)?;
        }
        if let Some([q, k, v]) = self.wide {
            write!(f, ", standard deviations {q:.3e}, {k:.3e}, {v:.3e}")?;
        }
        Ok(())
    }
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
        if accepted && scale.is_normal() && (judged || one_in(random, 16)) {
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
    let solves = |e: &ferroflash::kernels::AttnInfo| {
        e.dtype == p.dtype
            && (e.mask == mask || e.mask == MaskKind::Local)
            && e.takes_columns(p.columns())
            && capabilities.runs(&e.contract).is_ok()
            && !(e.has_maps() && p.alibi)
    };
    let own = ENTRIES.iter().chain(HOPPERS).filter(|e| solves(e)).map(|e| e.contract.symbol);
    let named = CONFIGURATIONS.iter().filter(|c| c.entry(mask).is_ok_and(solves)).map(|c| c.name);
    let all: Vec<_> = own.chain(named).collect();
    (!all.is_empty()).then(|| pick(random, &all))
}

/// One fault of a request, and the field that the error must name.
struct Fault {
    /// Name of the fault.
    name: &'static str,
    /// Adds the fault to a request; returns `false` if the request cannot have it.
    spoil: fn(&mut AttentionRequest<'_>, &mut Random) -> bool,
    /// The expected start of [`Error::Invalid::what`] or [`Error::Unsupported::feature`].
    names: &'static str,
}

#[rustfmt::skip]
const FAULTS: &[Fault] = &[
    Fault { name: "misaligned address", names: "q.address",
        spoil: |f, r| { f.q.address += 2 * (1 + below(r, 7) as u64); true } },
    Fault { name: "no address", names: "k.address", spoil: |f, _| { k(f).address = 0; true } },
    Fault { name: "another type", names: "v.dtype",
        spoil: |f, _| { v(f).dtype = other(v(f).dtype); true } },
    Fault { name: "more values than keys", names: "v.shape",
        spoil: |f, r| { v(f).shape[1] += 1 + below(r, 99); true } },
    Fault { name: "output of another length", names: "o.shape",
        spoil: |f, r| { f.o.shape[1] += 1 + below(r, 99); true } },
    Fault { name: "odd head dim", names: "head_dim",
        spoil: |f, r| { let odd = 1 + below(r, 7); all(f, |t| t.shape[3] += odd) } },
    Fault { name: "large head dim", names: "head_dim",
        spoil: |f, r| { let large = 520 + 8 * below(r, 99); all(f, |t| t.shape[3] = large) } },
    Fault { name: "nothing to do", names: "batch", spoil: |f, _| all(f, |t| t.shape[0] = 0) },
    Fault { name: "heads that do not divide", names: "heads_q",
        spoil: |f, r| {
            let more = f.q.shape[2] + 1 + below(r, 9);
            (k(f).shape[2], v(f).shape[2]) = (more, more);
            true
        } },
    Fault { name: "scale not finite", names: "scale",
        spoil: |f, r| { f.scores.scale = Some(pick(r, &NOT_FINITE)); true } },
    Fault { name: "scale not above 0", names: "scale",
        spoil: |f, r| { f.scores.scale = Some(-(below(r, 9) as f32)); true } },
    Fault { name: "softcap not above 0", names: "softcap",
        spoil: |f, r| { f.scores.softcap = Some(pick(r, &[f32::NAN, -1.0, f32::INFINITY])); true } },
    Fault { name: "columns apart", names: "k.strides",
        spoil: |f, r| { k(f).strides[3] = 2 + below(r, 9) as i64; true } },
    Fault { name: "misaligned rows", names: "k.strides",
        spoil: |f, r| { k(f).strides[1] += 1 + below(r, 7) as i64; k(f).shape[1] > 1 } },
    Fault { name: "backward rows", names: "v.strides",
        spoil: |f, _| { v(f).strides[1] = -v(f).strides[1]; v(f).shape[1] > 1 } },
    Fault { name: "buffer too small", names: "q.elements",
        spoil: |f, r| { f.q.elements = below(r, f.q.shape[3]) as u64; true } },
    Fault { name: "output on an input", names: "o.address",
        spoil: |f, _| { f.o.address = v(f).address; true } },
    Fault { name: "output repeats itself", names: "o.strides",
        spoil: |f, _| { f.o.strides[1] = 0; f.o.shape[1] > 1 } },
    Fault { name: "log-sum-exp misaligned", names: "lse.address",
        spoil: |f, r| {
            let off = 1 + below(r, 3) as u64;
            f.lse.as_mut().is_some_and(|lse| { lse.address += off; true })
        } },
    Fault { name: "log-sum-exp of another shape", names: "lse.shape",
        spoil: |f, _| f.lse.as_mut().is_some_and(|lse| { lse.shape[1] += 1; true }) },
    Fault { name: "log-sum-exp too small", names: "lse.elements",
        spoil: |f, _| f.lse.as_mut().is_some_and(|lse| { lse.elements -= 1; true }) },
    Fault { name: "slopes misaligned", names: "alibi.address",
        spoil: |f, r| {
            let off = 1 + below(r, 3) as u64;
            f.scores.alibi.as_mut().is_some_and(|slopes| { slopes.address += off; true })
        } },
    Fault { name: "slopes too few", names: "alibi.elements",
        spoil: |f, _| f.scores.alibi.as_mut().is_some_and(|slopes| { slopes.elements = 0; true }) },
    Fault { name: "workspace misaligned", names: "workspace.address",
        spoil: |f, r| {
            let off = 1 + below(r, 15) as u64;
            workspace(f).is_some_and(|w| { w.address += off; true })
        } },
    Fault { name: "workspace on the output", names: "workspace.address",
        spoil: |f, _| {
            let o = f.o.address;
            workspace(f).is_some_and(|w| { w.address = o; true })
        } },
    Fault { name: "workspace too small for the kernel asked for", names: "workspace.bytes", spoil: |f, r| {
        let asked = f.config.is_some();
        workspace(f).is_some_and(|w| { w.bytes = below(r, w.bytes as usize) as u64; asked })
    } },
    Fault { name: "unknown kernel", names: "config",
        spoil: |f, _| { f.config = Some("fwd_f16_d64_full_80x64"); true } },
    Fault { name: "a tiling that no kernel can have", names: "fa_s512/80x64w8",
        spoil: |f, _| { f.config = Some("fa_s512/80x64w8"); true } },
    Fault { name: "a kernel of another type", names: "config", spoil: |f, _| {
        f.config = ENTRIES.iter().find(|e| e.dtype != f.q.dtype).map(|e| e.contract.symbol);
        f.config.is_some()
    } },
];

/// Adds a fault to the request of `fuzz`, and plans it. `seed` picks the fault.
///
/// # Errors
/// Returns a description if the planner accepted the request or refused it for another reason.
pub fn refused(fuzz: &Fuzz, seed: u64, capabilities: &Capabilities) -> Result<&'static str, String> {
    let random = &mut Random::new(seed);
    let address = |n: u64| n << 40;
    let inputs = [1, 2, 3, 7].map(address);
    let mut good = fuzz.memory.forward(&inputs, address(4), address(5));
    good.config = fuzz.config;
    let planned = ferroflash::plan(&good.scratch(Scratch::Fastest), capabilities);
    let bytes = planned.map_err(|e| format!("{fuzz}: {e}"))?.scratch_bytes().workspace;
    good.scratch = if bytes > 0 { Scratch::workspace(address(6), bytes) } else { Scratch::None };
    ferroflash::plan(&good, capabilities).map_err(|e| format!("{fuzz}: refused as it was: {e}"))?;
    let (fault, bad) = loop {
        let (fault, mut bad) = (&FAULTS[below(random, FAULTS.len())], good);
        if (fault.spoil)(&mut bad, random) {
            break (fault, bad);
        }
    };
    let named = match ferroflash::plan(&bad, capabilities) {
        Ok(_) => return Err(format!("{fuzz}: accepted although {}", fault.name)),
        Err(Error::Invalid { what, .. }) => what.to_owned(),
        Err(Error::Unsupported { feature, .. }) => feature,
        Err(other) => return Err(format!("{fuzz}: {}: {other}", fault.name)),
    };
    match named.starts_with(fault.names) {
        true => Ok(fault.name),
        false => Err(format!("{fuzz}: {}: should name {}, names {named}", fault.name, fault.names)),
    }
}

/// Returns the names of all faults that [`refused`] can pick.
pub fn faults() -> impl Iterator<Item = &'static str> {
    FAULTS.iter().map(|fault| fault.name)
}
