//! Tests random problems in the simulator, with fixed seeds. Results of valid problems must agree with the
//! reference. Errors of invalid problems must name the invalid field. `cargo xtask fuzz` uses new seeds.
use ferroflash::driver::SimDriver;
use ferroflash::request::Precision;
use ferroflash::spec::DELTAS;
use ferroflash::{Attention, Capabilities};
use ferroflash_tests::{is_carried, is_thorough, lacks_kernel};
use ptx_sim::{MmaArch, MmaMode, Options};
use reference::fuzz::{Fuzz, Limits, families, faults, refused};
use reference::{Binder, LaunchOptions, Random, subjects, unfit};
use std::collections::{BTreeMap, BTreeSet};

/// Number of problems of forward attention, and number of problems of each other family, that the test
/// solves.
fn problems() -> [usize; 2] {
    if is_thorough() { [120, 25] } else { [20, 4] }
}

#[test]
fn random_problems_agree_with_the_reference() {
    let attention = Attention::new(SimDriver::new("l4").expect("a known card"));
    let (mut random, [count, _]) = (Random::new(1), problems());
    let (mut solved, mut rows, mut not_judged) = (0, 0, 0);
    // If the build has a sample of the kernels, the loop draws until it has found enough problems that these
    // kernels solve.
    while solved < count {
        let fuzz = Fuzz::new(random.bits(), Limits::SIMULATOR, attention.capabilities());
        let findings = match fuzz.run(&attention) {
            Err(error) if lacks_kernel(&error) => continue,
            findings => findings.unwrap_or_else(|e| panic!("{fuzz}: {e}")),
        };
        assert!(findings.failures.is_empty(), "{fuzz}: {findings:?}");
        (solved, rows, not_judged) = (solved + 1, rows + findings.rows, not_judged + findings.not_judged);
    }
    println!("{not_judged} of {rows} rows are not judged");
    assert!(not_judged < rows / 2, "{not_judged} of {rows} rows are not judged");
}

#[test]
fn random_problems_of_other_families_are_right() {
    let attention = Attention::new(SimDriver::new("l4").expect("a known card"));
    let (mut random, [_, count]) = (Random::new(2), problems());
    // The sample has no backward kernels. `tests/tests/backward.rs` runs all of them.
    let trains = DELTAS.iter().any(|delta| is_carried(delta.contract.symbol));
    let is_there = |family: &&str| trains || *family != "backward";
    let mut missing: BTreeMap<_, _> = families().filter(is_there).map(|family| (family, count)).collect();
    while missing.values().any(|count| *count > 0) {
        let other = Fuzz::other(random.bits(), Limits::SIMULATOR);
        let Some(left) = missing.get_mut(other.family.expect("a family")).filter(|left| **left > 0) else {
            continue;
        };
        let findings = match other.run(&attention) {
            Err(error) if lacks_kernel(&error) => continue,
            findings => findings.unwrap_or_else(|e| panic!("{other}: {e}")),
        };
        assert!(findings.failures.is_empty(), "{other}: {findings:?}");
        *left -= 1;
    }
}

/// The simulated card has the sums of Hopper's tensor cores, and two SMs, so that a block takes several
/// tiles.
#[test]
fn random_problems_with_products_of_e4m3_on_hopper_are_right() {
    let options = Options { mma: MmaMode::Exact(MmaArch::Hopper), ..Options::default() };
    let h200 = SimDriver::of_multiprocessors("h200", options, Some(2)).expect("a known card");
    let (attention, limits) = (Attention::new(h200), of_hopper(Limits::SIMULATOR));
    let (mut random, mut solved) = (Random::new(3), 0);
    while solved < problems()[1] {
        let fuzz = Fuzz::other(random.bits(), limits);
        if fuzz.kernel(&attention).is_ok_and(|kernel| !kernel.symbol.starts_with("fp8")) {
            continue;
        }
        let findings = match fuzz.run(&attention) {
            Err(error) if lacks_kernel(&error) => continue,
            findings => findings.unwrap_or_else(|e| panic!("{fuzz}: {e}")),
        };
        assert!(findings.failures.is_empty(), "{fuzz}: {findings:?}");
        solved += 1;
    }
}

/// Limits of problems for one of Hopper's cards.
fn of_hopper(limits: Limits) -> Limits {
    Limits { of_e4m3: Some(Precision::Fp8), ..limits }
}

/// Problems of the size that GPUs solve. This test only plans them, but it fills their tensors.
#[test]
fn problems_for_a_gpu_are_valid() {
    let attention = Attention::new(SimDriver::new("h200").expect("a known card"));
    let mut random = Random::new(5);
    let (problems, apart) = if is_thorough() { (10, 61) } else { (5, 127) };
    for _ in 0..problems {
        let other = Fuzz::other(random.bits(), of_hopper(Limits::GPU));
        other.kernel(&attention).unwrap_or_else(|e| panic!("{other}: {e}"));
    }
    // The loop takes some subjects of each other family.
    let others = subjects().filter(|subject| !["forward", "split"].contains(&subject.family()));
    for subject in others.step_by(apart) {
        let all = subject.grid(1).into_iter().chain(subject.corrupt(1));
        for task in all.filter(|task| subject.takes(task, attention.capabilities())) {
            // Planning needs no memory on the device.
            let (work, symbol) = (task.work(), subject.contract().symbol);
            let options = LaunchOptions { config: Some(symbol), ..LaunchOptions::default() };
            let plan = attention.plan(&work.request(&mut Binder::at(None, None), options));
            let kernel = plan.unwrap_or_else(|e| panic!("{symbol}: {task}: {e}")).contract();
            // Extra kernels run beside the plan's kernel.
            let is_fit = subject.family() != "extra" && unfit(subject, attention.capabilities()).is_none();
            assert!(!is_fit || kernel.symbol == symbol, "{symbol}: {task}");
        }
    }
}

#[test]
fn spoilt_requests_are_refused_by_name() {
    let l4 = Capabilities::profile("l4").expect("a known card");
    let mut random = Random::new(1);
    let mut seen = BTreeSet::new();
    for _ in 0..300 {
        let fuzz = Fuzz::new(random.bits(), Limits::SIMULATOR, l4);
        for _ in 0..20 {
            seen.insert(refused(&fuzz, random.bits(), l4).unwrap_or_else(|wrong| panic!("{wrong}")));
        }
    }
    assert_eq!(seen, faults().collect(), "every fault was tried");
}

#[test]
fn the_same_seed_makes_the_same_problem() {
    let l4 = Capabilities::profile("l4").expect("a known card");
    let of = |seed| {
        let fuzz = Fuzz::new(seed, Limits::GPU, l4);
        (fuzz.to_string(), fuzz.work().inputs())
    };
    assert_eq!(of(5), of(5));
    assert_ne!(of(5).0, of(6).0);
}
