//! Runs attention cases on a cache in the simulator.
use ferroflash::Attention;
use ferroflash::driver::SimDriver;
use ferroflash::kernels::AttnInfo;
use ferroflash::plan::AnyPlan;
use ferroflash::request::Mask;
use ferroflash::spec::MaskKind;
use ptx_sim::Kind;
use reference::{Case, Loaded, Memory, Outcome, Pages};

/// The name of a card with 16 SMs that can run every entry from sm_80 on. With few SMs, kernels need splits
/// and several rounds.
const CARD: &str = "orin";

/// A simulator of a card with 16 SMs.
///
/// # Panics
/// Panics if there is no such card.
pub fn attention() -> Attention<SimDriver> {
    Attention::new(SimDriver::new(CARD).expect("a known card"))
}

/// Launches one plan with each of these lists of lengths, and judges the results.
///
/// # Panics
/// Panics if the driver refuses a launch, if the simulator reports a finding, or if a result is wrong.
#[track_caller]
pub fn check_lengths(case: &Case, config: Option<&str>, lengths: &[Vec<i32>]) {
    check_lengths_on(&attention(), case, config, lengths)
}

/// [`check_lengths`] with the engine `attention`.
///
/// # Panics
/// Panics as [`check_lengths`] does.
#[track_caller]
pub fn check_lengths_on(
    attention: &Attention<SimDriver>,
    case: &Case,
    config: Option<&str>,
    lengths: &[Vec<i32>],
) {
    let memory = case.memory();
    let mut loaded = Loaded::new(attention, &memory, config).expect("a plan");
    let mut plan = None;
    for lengths in lengths {
        plan = Some(launch(attention, (case, &memory), &mut loaded, plan.as_ref(), lengths).0);
    }
}

/// Launches `plan`, or a new plan if `plan` is `None`, on a case and its memory, with these lengths. Judges
/// the result.
///
/// # Panics
/// Panics as [`check_lengths`] does.
#[track_caller]
pub fn launch(
    attention: &Attention<SimDriver>,
    (case, memory): (&Case, &Memory),
    loaded: &mut Loaded<'_, SimDriver>,
    plan: Option<&AnyPlan>,
    lengths: &[i32],
) -> (AnyPlan, Outcome) {
    let (plan, outcome) = loaded.launch(plan, lengths).unwrap_or_else(|error| {
        let reports: Vec<_> = attention.driver().take_reports();
        panic!(
            "{case:?}: {lengths:?}: {error}\n{}",
            reports.iter().map(|r| r.to_string()).collect::<String>()
        )
    });
    let wrong = memory.failures(&outcome, lengths).expect("a case");
    assert!(wrong.is_empty(), "{case:?}: {lengths:?}: {}", wrong.join("\n"));
    (plan, outcome)
}

/// Like [`check_lengths`], with the lengths of the case.
///
/// # Panics
/// Panics as [`check_lengths`] does.
#[track_caller]
pub fn check(case: &Case, config: Option<&str>) {
    check_on(&attention(), case, config)
}

/// [`check`] with the engine `attention`.
///
/// # Panics
/// Panics as [`check_lengths`] does.
#[track_caller]
pub fn check_on(attention: &Attention<SimDriver>, case: &Case, config: Option<&str>) {
    let lengths = case.filled.iter().map(|n| *n as i32).collect();
    check_lengths_on(attention, case, config, &[lengths]);
}

/// A mask that a kernel on a cache runs: causal, or a window.
pub const fn mask_of(entry: &AttnInfo) -> Mask {
    match entry.mask {
        MaskKind::Local => Mask::Window { left: Some(90), right: Some(0) },
        _ => Mask::Causal,
    }
}

/// Runs a kernel on pages of each of these sizes. In turn, the queries are varlen, and each sequence has the
/// same number of queries. `scored` gives the case the mask and the scores of the kernel.
///
/// # Panics
/// Panics as [`check_lengths`] does.
#[track_caller]
pub fn check_pages(
    attention: &Attention<SimDriver>,
    entry: &AttnInfo,
    sizes: &[Pages],
    scored: impl Fn(Case) -> Case,
) {
    for (turn, pages) in sizes.iter().enumerate() {
        let case = scored(Case { pages: *pages, ..Case::new([261, 130, 256, 0, 37, 128]) });
        let case = match turn % 2 {
            0 => case.varlen_queries([1, 130, 20, 3, 0, 12]),
            _ => Case { queries: 9, ..case },
        };
        check_on(attention, &case, Some(entry.contract.symbol));
    }
}

/// Checks launches with invalid lengths, starts and pages. A plan only knows bounds of these integers. A
/// launch must touch no memory outside of its tensors. The result of a sequence is judged if the cache
/// contains the keys of its clamped length. `scored` gives the case the mask and the scores of the kernels.
///
/// # Panics
/// Panics if a launch touches memory outside of its tensors, and as [`check_lengths`] does.
#[track_caller]
pub fn check_garbage(
    attention: impl Fn() -> Attention<SimDriver>,
    entry: &AttnInfo,
    pages: Pages,
    scored: impl Fn(Case) -> Case,
) {
    let config = Some(entry.contract.symbol);
    let most = 120;
    let garbage = [i32::MAX, -1, 51, i32::MIN, 0, 50, most as i32 + 1, 1, i32::MIN + 1];
    let filled: Vec<usize> = (0..6).map(|b| if b % 3 == 0 { most } else { 50 }).collect();
    let case = Case { pages, max_k: most, kv_dtype: Some(entry.kv_dtype), ..Case::new(filled) };
    let case = scored(case.varlen_queries([1, 20, 0, 33, 2, 17]));
    let lengths = |turn: usize| (0..6).map(|b| garbage[(b + turn) % garbage.len()]).collect::<Vec<_>>();
    check_lengths_on(&attention(), &case, config, &[lengths(0), lengths(4)]);
    let (attention, memory) = (attention(), case.memory());
    let mut loaded = Loaded::new(&attention, &memory, config).expect("a plan");
    for turn in 0..garbage.len() {
        let starts: Vec<i32> = (0..7).map(|b| garbage[(2 * b + turn) % garbage.len()]).collect();
        loaded.start(&starts).expect("as long");
        let launched = loaded.launch(None, &lengths(turn));
        // Sequences that overlap write the same rows, so races between them are allowed.
        let (races, reports): (Vec<_>, Vec<_>) =
            attention.driver().take_reports().into_iter().partition(|report| report.kind == Kind::GlobalRace);
        let fine = reports.is_empty() && (launched.is_ok() || !races.is_empty());
        assert!(fine, "{pages:?}: {starts:?}: {:?} {reports:?}", launched.err());
    }
}
