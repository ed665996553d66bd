//! The order of Hopper's additions to dQ, in the simulator: the same bits under every schedule, and a report
//! of every kernel that drops a part of the order.
use ferroflash::Attention;
use ferroflash::driver::SimDriver;
use ferroflash::spec::{AttnInfo, GRADIENTS, MaskKind, Pass};
use ferroflash::{DType, ptx};
use ptx_sim::{Completion, Kind, Options};
use reference::{Case, Layout, OnDevice, Pages, Subject, Task, Work, Written};

/// Hopper's kernels.
fn kernels() -> impl Iterator<Item = &'static AttnInfo> {
    GRADIENTS.iter().filter(|e| e.pass == Pass::Gradients)
}

/// Runs a problem with `text` as the kernel, on a card with this number of SMs. Returns the kinds of the
/// simulator's reports, if there are any.
fn run(
    kernel: &AttnInfo,
    text: &str,
    work: &dyn Work,
    (options, sms): (Options, u32),
) -> Result<Written, Vec<Kind>> {
    let driver = SimDriver::of_multiprocessors("h200", options, Some(sms)).expect("a known card");
    let attention = Attention::new(driver);
    // SAFETY: the simulator checks every access.
    unsafe { attention.load_from(kernel.contract.symbol, text) }.expect("it is PTX");
    match OnDevice::new(&attention, work, None).expect("room").run() {
        Ok(written) => {
            assert_eq!(written.entry, kernel.contract.symbol);
            Ok(written)
        }
        Err(_) => Err(attention.driver().take_reports().iter().map(|report| report.kind).collect()),
    }
}

/// The text of a kernel.
fn text(kernel: &AttnInfo) -> String {
    ptx::source(kernel.contract.symbol).expect("this build carries it")
}

/// Blocks of keys add to dQ in the order of keys, however many blocks run at once, and whenever warps run and
/// copies land.
#[test]
fn every_schedule_adds_in_the_same_order() {
    let schedules = [
        (1, Completion::Random, 1),
        (2, Completion::Random, 3),
        (3, Completion::Eager, 7),
        (4, Completion::Late, 2),
    ];
    for kernel in kernels().filter(|e| e.dtype == DType::Bf16) {
        let work = kernel.soak(1).work();
        let launch = |(seed, completion, sms)| {
            let options = Options { seed, completion, ..Options::default() };
            run(kernel, &text(kernel), &*work, (options, sms)).expect("runs")
        };
        let first = launch((0, Completion::Late, 2));
        for schedule in schedules {
            let again = launch(schedule);
            assert!(first == again, "{}: other bits under {schedule:?}", first.entry);
        }
    }
}

/// Whatever the offsets of sequences are, no block waits for a turn that nobody passes on, and no access is
/// out of bounds. Sequences may overlap, and their rows of dQ then have two writers.
#[test]
fn offsets_that_make_no_sense_leave_no_block_waiting() {
    for kernel in kernels().filter(|e| e.is_varlen() && e.dtype == DType::F16) {
        let work = kernel.corrupt(1).swap_remove(0).work();
        let attention = ferroflash_tests::simulator_with(kernel, Options::default());
        let mut device = OnDevice::new(&attention, &*work, None).expect("room");
        for round in 0..work.rounds() {
            device.change(work.changes(round)).expect("as long");
            let launched = device.run();
            let reports = attention.driver().take_reports();
            // The first round and the last have valid offsets.
            let is_valid = round == 0 || round + 1 == work.rounds();
            let may_be = reports.iter().all(|report| report.kind == Kind::GlobalRace && !is_valid);
            assert!(may_be && (launched.is_ok() || !reports.is_empty()), "round {round}: {reports:?}");
        }
    }
}

/// Changes the text of a kernel.
type Mutate = fn(&str) -> String;

/// The text without the first branch behind the keepers' loads of counters, so that keepers wait for no turn.
fn without_waits(text: &str) -> String {
    let mut loads = false;
    let lines = text.lines().filter(|line| {
        loads |= line.contains("ld.acquire.gpu");
        let is_wait = loads && line.contains("bra");
        loads &= !is_wait;
        !is_wait
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The simulator finds the additions of two key blocks unordered if a kernel drops a part of the order.
#[test]
fn additions_without_their_order_are_found() {
    let mutants: [(&str, Mutate); 3] = [
        ("without waits", without_waits),
        ("without acquire", |text| text.replace("ld.acquire.gpu", "ld.relaxed.gpu")),
        ("without release", |text| text.replace("red.release.gpu", "red.relaxed.gpu")),
    ];
    let of_f16 = kernels().filter(|e| (e.dtype, e.mask) == (DType::F16, MaskKind::Full) && !e.is_varlen());
    for kernel in of_f16 {
        let keys = 2 * kernel.tile_m as usize;
        let pages = Pages::Tensors(Layout::Bshd);
        let [head_dim, values] = kernel.columns().map(|columns| columns as usize);
        let head_dim_v = (values != head_dim).then_some(values);
        let forward = Case { queries: 64, heads: [2, 2], head_dim, head_dim_v, pages, ..Case::new([keys]) };
        let work = Task::Attention(forward.backward(false)).work();
        let text = text(kernel);
        for (name, mutate) in mutants {
            let mutant = mutate(&text);
            assert!(mutant.trim_end() != text.trim_end(), "{name}: the kernel does not change");
            let options = Options { seed: 1, completion: Completion::Random, ..Options::default() };
            let kinds = run(kernel, &mutant, &*work, (options, 2)).expect_err(name);
            assert!(kinds.contains(&Kind::GlobalRace), "{name}: {kinds:?}");
        }
    }
}
