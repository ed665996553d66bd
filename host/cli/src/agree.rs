//! `ferroflash agree`: the GPU against the simulator.
use super::console::Console;
use super::device::{self, Device};
use super::error::Error;
use super::options::{DeviceKind, KernelOptions};
use ferroflash::{Attention, Capabilities, DType, Driver, EntryInfo, SimDriver};
use ptx_sim::{MmaArch, MmaMode, Options};
use reference::{HostTensor, Loaded, Memory, Outcome, edges, unit_roundoff};
use serde::Serialize;
use std::fmt;
use std::time::Instant;

mod products;

use products::{Products, Tally};

/// Compare the GPU with the simulator: the same inputs through both, for every kernel.
///
/// The simulator multiplies tiles as the card's tensor cores round. Exponentials and reciprocals of a card
/// are approximations of its own, so that a probability may be rounded otherwise: O may differ by 2 units in
/// the last place of its row's largest element, the log-sum-exp by 2e-6 of itself and 1e-6, in at most 2 % of
/// a kernel's rows (or one row) also by a quarter of one rounding of a probability. Before that,
/// random products (subnormals, infinities, cancellation) go through the tensor cores alone and must agree in
/// every bit.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  ferroflash agree --device gpu
  ferroflash agree --device gpu --products 100000 --json
  ferroflash agree --device gpu --config fwd_bf16_d128_causal_128x64")]
pub(super) struct Args {
    /// Random 16 x 8 x 16 products of each element type.
    #[arg(long, value_name = "N", default_value_t = 20_000,
        value_parser = clap::value_parser!(u32).range(1..))]
    products: u32,
    #[command(flatten)]
    kernels: KernelOptions,
}

#[derive(Serialize)]
struct Report {
    device: String,
    simulator: String,
    seed: u64,
    agree: bool,
    seconds: f64,
    products: Vec<Tally>,
    kernels: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    cases: usize,
    /// Why it cannot run here.
    skipped: Option<String>,
    #[serde(flatten)]
    difference: Difference,
    failures: Vec<String>,
}

/// How far two results are from each other.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Difference {
    /// Elements of O, and those whose bits differ.
    words: usize,
    differing: usize,
    /// Largest difference in units in the last place of the row's largest element.
    o_ulps: f64,
    /// Rows, and those whose log-sum-exp is off by more than its own arithmetic explains: a probability was
    /// rounded otherwise.
    rows: usize,
    rounded_otherwise: usize,
    /// Largest difference of a log-sum-exp over what is allowed.
    lse_ratio: f64,
}

/// Most units in the last place of the row's largest element that O may differ by.
const O_ULPS: f64 = 2.0;
/// How much of a rounding of a probability a log-sum-exp may be off by. A probability that is rounded
/// otherwise moves the sum by its share of it, and is one of many: 0.1 at most between an H200 and the
/// simulator. A kernel that sums something else is off by more.
const OF_A_ROUNDING: f64 = 0.25;
/// One row in so many may have such a probability: its exact value must lie where two values of the type
/// meet, to within the error of an exponential. On an H200 at most 0.7 % of a kernel's rows do.
const ROWS_PER_OTHERWISE: usize = 50;

pub(super) fn run(args: Args, console: &Console) -> Result<(), Error> {
    let entries = args.kernels.entries()?;
    match args.kernels.device.kind()? {
        DeviceKind::Auto => agree(&Attention::new(device::open_cuda(0)?), &entries, &args, console),
        DeviceKind::Gpu(ordinal) => {
            agree(&Attention::new(device::open_cuda(ordinal)?), &entries, &args, console)
        }
        DeviceKind::Sim => {
            let profile = args.kernels.device.profile();
            let options = Options { mma: arithmetic(profile), ..Options::default() };
            agree(&Attention::new(SimDriver::with_options(profile, options)?), &entries, &args, console)
        }
        DeviceKind::Cpu => Device::Cpu.kernels("agree").map(drop),
    }
}

/// The simulator's card that is most like `capabilities`.
fn profile(capabilities: &Capabilities) -> &'static str {
    match capabilities.compute_capability {
        (9, _) => "h200",
        (8, 0) => "a100",
        _ => "l4",
    }
}

/// How that card's tensor cores round.
fn arithmetic(profile: &str) -> MmaMode {
    MmaMode::Exact(if profile.starts_with('h') { MmaArch::Hopper } else { MmaArch::Ampere })
}

fn agree<D: Driver>(
    attention: &Attention<D>,
    entries: &[&'static EntryInfo],
    args: &Args,
    console: &Console,
) -> Result<(), Error> {
    let start = Instant::now();
    let name = profile(attention.capabilities());
    let options = Options { mma: arithmetic(name), ..Options::default() };
    let simulator = Attention::new(SimDriver::with_options(name, options)?);
    let bar = console.progress("agree", entries.len() + 2);
    let mut tallies = vec![];
    for dtype in [DType::F16, DType::Bf16] {
        bar.set_message(format!("{} products", dtype.name()));
        let products = Products::random(dtype, args.products, args.kernels.seed);
        tallies
            .push(products.compare(&products.run(attention.driver())?, &products.run(simulator.driver())?));
        bar.inc(1);
    }
    let mut kernels = vec![];
    for entry in entries {
        bar.set_message(entry.contract.symbol);
        kernels.push(row(attention, &simulator, entry, args.kernels.seed)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let failures: Vec<String> = tallies.iter().filter_map(Tally::failure).collect();
    let kernel_failures =
        kernels.iter().flat_map(|row| row.failures.iter().map(move |f| format!("{}: {f}", row.name)));
    let failures: Vec<String> = failures.into_iter().chain(kernel_failures).collect();
    let ran = kernels.iter().any(|row| row.skipped.is_none());
    let result = Error::first_of("differences", failures.len(), failures.first(), ran, "this device");
    let report = Report {
        device: attention.capabilities().name.to_string(),
        simulator: simulator.capabilities().name.to_string(),
        seed: args.kernels.seed,
        agree: result.is_ok(),
        seconds: start.elapsed().as_secs_f64(),
        products: tallies,
        kernels,
    };
    console.report(&report, result)
}

fn row<D: Driver>(
    attention: &Attention<D>,
    simulator: &Attention<SimDriver>,
    entry: &'static EntryInfo,
    seed: u64,
) -> Result<Row, Error> {
    let devices = [attention.capabilities(), simulator.capabilities()];
    let skipped = devices.into_iter().find_map(|device| reference::unfit(entry, device));
    let mut row = Row {
        name: entry.contract.symbol,
        cases: 0,
        skipped,
        difference: Difference::default(),
        failures: vec![],
    };
    if row.skipped.is_some() {
        return Ok(row);
    }
    for case in edges(entry, seed) {
        let memory = case.memory();
        let failed = |error: ferroflash::Error| match Error::from(error) {
            Error::Device(text) => Error::Device(format!("{}: {case}: {text}", entry.contract.symbol)),
            other => Error::Invalid(format!("{}: {case}: {other}", entry.contract.symbol)),
        };
        let left =
            Loaded::new(attention, &memory, Some(entry.contract.symbol)).and_then(|loaded| loaded.run());
        let right =
            Loaded::new(simulator, &memory, Some(entry.contract.symbol)).and_then(|loaded| loaded.run());
        let difference = Difference::of(&memory, &left.map_err(failed)?, &right.map_err(failed)?)?;
        row.cases += 1;
        row.failures.extend(difference.failure().map(|failure| format!("{case}: {failure}")));
        row.difference = row.difference.and(difference);
    }
    row.failures.extend(row.difference.too_many_rows());
    Ok(row)
}

/// Distance of two neighbouring numbers of `dtype` around `x`.
fn ulp(dtype: DType, x: f64) -> f64 {
    let lowest = dtype.min_exponent();
    let exponent = if x > 0.0 { (x.log2().floor() as i32).max(lowest) } else { lowest };
    2f64.powi(exponent - dtype.mantissa_bits())
}

/// `|a - b|`, 0 for equal infinities, infinite where it is not a number: never NaN.
fn distance(a: f32, b: f32) -> f64 {
    let distance = if a == b { 0.0 } else { (f64::from(a) - f64::from(b)).abs() };
    if distance.is_nan() { f64::INFINITY } else { distance }
}

impl Difference {
    fn of(memory: &Memory, left: &Outcome, right: &Outcome) -> Result<Self, Error> {
        let (place, dtype) = (memory.written(), memory.problem.dtype);
        let tensor = |outcome: &Outcome| outcome.o().to_vec();
        let (a, b) = (tensor(left), tensor(right));
        let view = |bits| {
            HostTensor::new(bits, 0, dtype, place.shape, place.strides)
                .map_err(|e| Error::Invalid(e.to_string()))
        };
        let [lse_a, lse_b] = [left, right].map(|outcome| memory.written_lse(outcome.lse()));
        Ok(Self::between([view(&a)?, view(&b)?], [&lse_a, &lse_b]))
    }

    fn between([a, b]: [HostTensor<'_>; 2], [lse_a, lse_b]: [&[f32]; 2]) -> Self {
        let mut sum = Difference::default();
        let [batches, rows, heads, _] = a.shape();
        for index in 0..batches * rows * heads {
            let (batch, row, head) = (index / (rows * heads), index / heads % rows, index % heads);
            let pairs = || a.values(batch, row, head).zip(b.values(batch, row, head));
            let largest = pairs().map(|(a, b)| f64::from(a.abs().max(b.abs()))).fold(0.0, f64::max);
            let off = pairs().map(|(a, b)| distance(a, b)).fold(0.0, f64::max);
            sum.words += a.shape()[3];
            let bits = a.row(batch, row, head).iter().zip(b.row(batch, row, head));
            sum.differing += bits.filter(|(a, b)| a != b).count();
            // An infinite element has no unit.
            let ulps = if off.is_finite() { off / ulp(a.dtype(), largest) } else { off };
            sum.o_ulps = sum.o_ulps.max(ulps);
        }
        let rounding = OF_A_ROUNDING * unit_roundoff(a.dtype());
        for (a, b) in lse_a.iter().zip(lse_b) {
            let off = distance(*a, *b);
            let own = if a.is_finite() { 2e-6 * f64::from(a.abs()) + 1e-6 } else { 1e-6 };
            sum.rows += 1;
            sum.rounded_otherwise += usize::from(off > own);
            sum.lse_ratio = sum.lse_ratio.max(off / (own + rounding));
        }
        sum
    }

    fn and(self, other: Self) -> Self {
        Difference {
            words: self.words + other.words,
            differing: self.differing + other.differing,
            o_ulps: self.o_ulps.max(other.o_ulps),
            rows: self.rows + other.rows,
            rounded_otherwise: self.rounded_otherwise + other.rounded_otherwise,
            lse_ratio: self.lse_ratio.max(other.lse_ratio),
        }
    }

    /// What is further off in a case than allowed.
    fn failure(&self) -> Option<String> {
        if self.o_ulps > O_ULPS {
            return Some(format!(
                "O differs by {:.2} ulp of its row's largest element, allowed {O_ULPS}",
                self.o_ulps
            ));
        }
        let ratio = self.lse_ratio;
        (ratio > 1.0).then(|| format!("the log-sum-exp differs by {ratio:.2} times what is allowed"))
    }

    /// Whether more of a kernel's rows are rounded otherwise than allowed. One row may be any share of a few.
    fn too_many_rows(&self) -> Option<String> {
        let Difference { rows, rounded_otherwise, .. } = self;
        let allowed = (rows / ROWS_PER_OTHERWISE).max(1);
        (*rounded_otherwise > allowed).then(|| {
            format!(
                "the log-sum-exp of {rounded_otherwise} of {rows} rows is off by a rounding, allowed \
                 {allowed}"
            )
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for tally in &self.products {
            writeln!(f, "{tally}")?;
        }
        let name = self.kernels.iter().map(|row| row.name.len()).max().unwrap_or(0);
        writeln!(f, "{:name$}  cases  same bits  o, ulp  lse rounded otherwise", "kernel")?;
        for row in &self.kernels {
            let Difference { words, differing, o_ulps, rows, rounded_otherwise, .. } = row.difference;
            match &row.skipped {
                Some(reason) => writeln!(f, "{:name$}  skipped: {reason}", row.name)?,
                None => {
                    let same = 100.0 * (words - differing) as f64 / words.max(1) as f64;
                    let otherwise = 100.0 * rounded_otherwise as f64 / rows.max(1) as f64;
                    writeln!(
                        f,
                        "{:name$}  {:>5}  {same:>7.2} %  {o_ulps:>6.2}  {otherwise:.2} % of rows",
                        row.name, row.cases
                    )?;
                }
            }
            for failure in &row.failures {
                writeln!(f, "  DIFFERS {failure}")?;
            }
        }
        let verdict = if self.agree { "agree" } else { "DO NOT AGREE" };
        writeln!(
            f,
            "{} and {} {verdict}, seed {}, {:.1} s",
            self.device, self.simulator, self.seed, self.seconds
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reference::Case;

    fn difference(a: [f32; 2], b: [f32; 2], lse: [f32; 2]) -> Option<String> {
        let bits = [a, b].map(|row| row.map(|x| half::f16::from_f32(x).to_bits()));
        let views =
            [&bits[0], &bits[1]].map(|bits| HostTensor::bshd(bits, DType::F16, [1, 1, 1, 2]).expect("fits"));
        Difference::between(views, [&lse[..1], &lse[1..]]).failure()
    }

    #[test]
    fn bounds() {
        let ulp = 2f32.powi(-10);
        assert_eq!(difference([1.0, 0.25], [1.0 + 2.0 * ulp, 0.25], [3.0, 3.0]), None);
        assert!(difference([1.0, 0.25], [1.0 + 3.0 * ulp, 0.25], [3.0, 3.0]).is_some());
        assert!(difference([1.0, f32::NAN], [1.0, 0.0], [3.0, 3.0]).is_some());
        assert!(difference([1.0, f32::INFINITY], [1.0, 0.0], [3.0, 3.0]).is_some());
        let none = f32::NEG_INFINITY;
        assert_eq!(difference([0.0, 0.0], [0.0, 0.0], [none, none]), None);
        assert!(difference([0.0, 0.0], [0.0, 0.0], [none, -80.0]).is_some());
        assert_eq!(difference([1.0, 1.0], [1.0, 1.0], [3.0, 3.0001]), None);
        assert!(difference([1.0, 1.0], [1.0, 1.0], [3.0, 3.0002]).is_some());
        assert!(difference([1.0, 1.0], [1.0, 1.0], [3.0, f32::NAN]).is_some());
    }

    #[test]
    fn few_rows_are_rounded_otherwise() {
        let of = |rounded_otherwise, rows| Difference { rows, rounded_otherwise, ..Difference::default() };
        for (allowed, rows) in [(0, 0), (1, 1), (1, 99), (2, 100), (20, 1000)] {
            assert_eq!(of(allowed, rows).too_many_rows(), None, "{rows}");
            assert!(of(allowed.max(1) + 1, rows).too_many_rows().is_some(), "{rows}");
        }
    }

    #[test]
    fn other_roundings_stay_within_the_bounds_and_other_inputs_do_not() {
        let entry = ferroflash::ENTRIES
            .iter()
            .find(|e| e.mask == ferroflash::MaskKind::Causal)
            .expect("the table has causal entries");
        let sim = |mma| {
            Attention::new(SimDriver::with_options("l4", Options { mma, ..Options::default() }).expect("l4"))
        };
        let run = |mma, case: &Case| {
            let (attention, memory) = (sim(mma), case.memory());
            let outcome =
                Loaded::new(&attention, &memory, Some(entry.contract.symbol)).and_then(|loaded| loaded.run());
            outcome.expect("runs")
        };
        let case = edges(entry, 1)[3];
        let exact = run(MmaMode::Exact(MmaArch::Hopper), &case);
        let of = |outcome: &Outcome| Difference::of(&case.memory(), &exact, outcome).expect("fits");
        let fast = of(&run(MmaMode::Fast, &case));
        assert!(fast.differing > 0 && fast.failure().is_none(), "{fast:?}");
        let other = of(&run(MmaMode::Fast, &Case { seed: case.seed + 1, ..case }));
        assert!(other.failure().is_some(), "{other:?}");
    }
}
