//! Random problems in the simulator, for a while: valid ones agree with the reference, invalid ones are
//! refused by name.
use ferroflash::driver::SimDriver;
use ferroflash::{Attention, Capabilities};
use reference::fuzz::{FAMILIES, Fuzz, Limits, Other, faults, refused};
use reference::{OnDevice, Random, subjects, unfit};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long problems are solved: longer where nobody waits.
fn time() -> Duration {
    Duration::from_secs(if std::env::var_os("CI").is_some() { 40 } else { 12 })
}
/// Problems for each second; fewer would say that a case takes too long to find anything.
const AT_LEAST: f64 = 0.5;

#[test]
fn random_problems_agree_with_the_reference() {
    let attention = Attention::new(SimDriver::new("l4").expect("a known card"));
    // Another seed each day, so that every run adds something; a failure names its case.
    let day = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_secs() / 86_400;
    let (start, time, mut random, mut solved) = (Instant::now(), time(), Random::new(day), 0);
    let (mut rows, mut not_judged) = (0, 0);
    while start.elapsed() < time {
        let fuzz = Fuzz::new(random.bits(), Limits::SIMULATOR, attention.capabilities());
        let findings = fuzz.run(&attention).unwrap_or_else(|e| panic!("{fuzz}: {e}"));
        assert!(findings.failures.is_empty(), "{fuzz}: {findings:?}");
        (rows, not_judged) = (rows + findings.rows, not_judged + findings.not_judged);
        solved += 1;
    }
    assert!(f64::from(solved) >= AT_LEAST * time.as_secs_f64(), "only {solved} problems in {time:?}");
    println!("{solved} problems, seed {day}: {not_judged} of {rows} rows are not judged");
    assert!(not_judged < rows / 2, "{not_judged} of {rows} rows are not judged");
}

#[test]
fn random_problems_of_other_families_are_right() {
    let attention = Attention::new(SimDriver::new("l4").expect("a known card"));
    let day = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_secs() / 86_400;
    let (start, mut random, mut solved) = (Instant::now(), Random::new(!day), BTreeMap::new());
    while start.elapsed() < time() / 2 || solved.len() < FAMILIES.len() {
        let other = Other::new(random.bits(), Limits::SIMULATOR);
        let findings = other.run(&attention).unwrap_or_else(|e| panic!("{other}: {e}"));
        assert!(findings.failures.is_empty(), "{other}: {findings:?}");
        *solved.entry(other.family).or_insert(0) += 1;
    }
    println!("{solved:?} problems, seed {day}");
}

/// What only a GPU gets through: that it can be planned is seen here.
#[test]
fn problems_for_a_gpu_are_valid() {
    let attention = Attention::new(SimDriver::new("h200").expect("a known card"));
    let mut random = Random::new(5);
    for _ in 0..25 {
        let other = Other::new(random.bits(), Limits::GPU);
        other.kernel(&attention).unwrap_or_else(|e| panic!("{other}: {e}"));
    }
    // Of each family some.
    let others = subjects().filter(|subject| !["forward", "split"].contains(&subject.family()));
    for subject in others.step_by(31) {
        for task in subject.grid(1).into_iter().chain(subject.astray(1)) {
            let (work, symbol) = (task.work(), subject.contract().symbol);
            let kernel = OnDevice::new(&attention, &*work, Some(symbol)).and_then(|device| device.kernel());
            let kernel = kernel.unwrap_or_else(|e| panic!("{symbol}: {task}: {e}"));
            let expected = unfit(subject, attention.capabilities()).is_none().then_some(symbol);
            assert!(expected.is_none_or(|symbol| kernel.symbol == symbol), "{symbol}: {task}");
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
        (fuzz.to_string(), fuzz.memory.buffers)
    };
    assert_eq!(of(5), of(5));
    assert_ne!(of(5).0, of(6).0);
}
