//! Cases of attention on a cache, in the simulator.
use ferroflash::{Attention, SimDriver};
use reference::{DecodeCase, DecodeMemory, LoadedDecode};

/// A card of 16 SMs, which holds every entry from sm_80 on: splits and several rounds with few blocks.
const CARD: &str = "orin";

/// A simulator of it.
///
/// # Panics
/// Where there is no such card.
pub fn attention() -> Attention<SimDriver> {
    Attention::new(SimDriver::new(CARD).expect("a known card"))
}

/// Launches one plan on each of these lengths, and judges what comes back.
///
/// # Panics
/// Where a launch is refused, a checker of the simulator finds something, or a result is wrong.
#[track_caller]
pub fn check_lengths(case: &DecodeCase, config: Option<&str>, lengths: &[Vec<i32>]) {
    check_lengths_on(&attention(), case, config, lengths)
}

/// The same by this driver.
///
/// # Panics
/// As [`check_lengths`].
#[track_caller]
pub fn check_lengths_on(
    attention: &Attention<SimDriver>,
    case: &DecodeCase,
    config: Option<&str>,
    lengths: &[Vec<i32>],
) {
    let memory = DecodeMemory::new(case);
    let mut loaded = LoadedDecode::new(attention, &memory, config).expect("a plan");
    let mut plan = None;
    for lengths in lengths {
        let (used, outcome) = loaded.run(plan.as_ref(), lengths).unwrap_or_else(|error| {
            let reports: Vec<_> = attention.driver().take_reports();
            panic!(
                "{case:?}: {lengths:?}: {error}\n{}",
                reports.iter().map(|r| r.to_string()).collect::<String>()
            )
        });
        plan = Some(used);
        let wrong = memory.judge(&outcome, lengths).expect("a case");
        assert!(wrong.is_empty(), "{case:?}: {lengths:?}: {}", wrong.join("\n"));
    }
}

/// The same on the case's own lengths.
///
/// # Panics
/// As [`check_lengths`].
#[track_caller]
pub fn check(case: &DecodeCase, config: Option<&str>) {
    check_on(&attention(), case, config)
}

/// The same by this driver.
///
/// # Panics
/// As [`check_lengths`].
#[track_caller]
pub fn check_on(attention: &Attention<SimDriver>, case: &DecodeCase, config: Option<&str>) {
    let lengths = case.filled.iter().map(|n| *n as i32).collect();
    check_lengths_on(attention, case, config, &[lengths]);
}
