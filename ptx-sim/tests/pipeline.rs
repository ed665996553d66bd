//! Tests a complete pipeline of bulk copies and products, and each single way to break it.

use common::hopper::{PIPELINE, Ran, pipeline};
use proptest::prelude::*;
use ptx_sim::{
    Completion, Kind, Module, Options, Swizzle,
    mutate::{Mutant, Operator, mutants},
};

/// Runs `text` in all schedules.
fn each(text: &str, check: impl Fn(&Ran, &str)) {
    for seed in 0..2 {
        for completion in [Completion::Late, Completion::Eager, Completion::Random] {
            let options = Options { seed, completion, ..Options::default() };
            let ran = pipeline(text, options, |_| {}).unwrap_or_else(|error| panic!("{error}"));
            check(&ran, &format!("seed {seed}, {completion:?}"));
        }
    }
}

/// Checks that every schedule reports one of `kinds` if `from` is replaced by `to`.
fn caught(kinds: &[Kind], from: &str, to: &str) {
    assert!(PIPELINE.contains(from), "{from}");
    each(&PIPELINE.replacen(from, to, 1), |ran, when| {
        let found: Vec<_> = ran.outcome.reports.iter().map(|report| report.kind).collect();
        assert!(found.iter().any(|kind| kinds.contains(kind)), "{from} -> {to}, {when}: {found:?}");
    });
}

#[test]
fn it_multiplies_and_nothing_is_wrong_with_it() {
    each(PIPELINE, |ran, when| {
        assert!(ran.outcome.reports.is_empty(), "{when}: {}", ran.outcome.reports[0]);
        assert_eq!(ran.found, ran.expected, "{when}");
    });
}

/// Successive groups may use the same accumulators, whenever the first group completes.
#[test]
fn groups_share_their_accumulators() {
    let step = "add.u64 a, a, 2; add.u64 b, b, 2;";
    let text = PIPELINE.replace(step, &format!("{COMMIT} {step}"));
    each(&text, |ran, when| {
        assert!(ran.outcome.reports.is_empty(), "{when}: {}", ran.outcome.reports[0]);
        assert_eq!(ran.found, ran.expected, "{when}");
    });
}

const FENCE: &str = "wgmma.fence.sync.aligned;";
const COMMIT: &str = "wgmma.commit_group.sync.aligned;";
const WAIT: &str = "wgmma.wait_group.sync.aligned 0;";
const ARRIVE: &str = "@p mbarrier.arrive.shared::cta.b64 _, [full+49168];";

#[test]
fn products_need_fence_commit_and_wait() {
    caught(&[Kind::Wgmma], FENCE, "");
    caught(&[Kind::PendingProduct], COMMIT, "");
    caught(&[Kind::PendingProduct], WAIT, "");
    caught(&[Kind::PendingProduct], WAIT, "wgmma.wait_group.sync.aligned 1;");
}

#[test]
fn registers_in_flight_are_left_alone() {
    for touch in ["mov.b32 y, d5;", "mov.b32 d31, y;", "add.u32 y, d0, 1;", "mov.u32 d7, 0;"] {
        caught(&[Kind::PendingProduct], "// in flight", touch);
    }
    // If the next product follows without a fence, a read counts too.
    let read = "mov.b32 y, d5; /*no fence*/";
    let next = "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16";
    let at = PIPELINE.find(next).unwrap();
    let product = &PIPELINE[at..at + PIPELINE[at..].find(';').unwrap() + 1];
    caught(&[Kind::Wgmma], WAIT, &format!("{WAIT} {read} {product} {COMMIT} {WAIT}"));
}

#[test]
fn stages_in_flight_are_left_alone() {
    let order = [Kind::WriteAfterRead, Kind::ReadAfterWrite, Kind::PendingCopy, Kind::WriteAfterWrite];
    // The consumer releases the stage too early.
    let early = format!("setp.eq.u32 p, lane, 0; {ARRIVE}");
    let text = PIPELINE.replacen(ARRIVE, "", 1);
    let text = text.replacen("// in flight", &early, 1);
    each(&text, |ran, when| {
        let found: Vec<_> = ran.outcome.reports.iter().map(|report| report.kind).collect();
        assert!(found.iter().any(|kind| order.contains(kind)), "{when}: {found:?}");
    });
    // The producer refills the stage without a wait; then the consumer reads the stage without a wait.
    caught(&[order.as_slice(), &[Kind::Mbarrier]].concat(), "@!p bra EMPTY;", "");
    caught(&[order.as_slice(), &[Kind::UninitialisedShared]].concat(), "@!p bra FULL;", "");
    // An ordinary write overwrites the stage in flight.
    caught(&order, "// in flight", "shl.b32 y, stage, 14; add.u32 y, y, s; st.shared.u32 [y], zero;");
}

#[test]
fn all_warps_wait_for_a_stage_and_one_may_leave_it() {
    let wait =
        "FULL:\n    mbarrier.try_wait.parity.shared::cta.b64 p, [full+49152], parity;\n    @!p bra FULL;";
    let one = format!("setp.ge.u32 p, t, 32; @p bra ALL; {wait} ALL:");
    caught(&[Kind::ReadAfterWrite, Kind::PendingCopy, Kind::UninitialisedShared], wait, &one);
    // When one warp has waited for a product, the product is complete for all warps.
    let text = PIPELINE.replace("[s+49168], 4;", "[s+49168], 1;").replace("[s+49176], 4;", "[s+49176], 1;");
    let text = text.replacen("setp.eq.u32 p, lane, 0;", "setp.eq.u32 p, t, 0;", 1);
    each(&text, |ran, when| {
        assert!(ran.outcome.reports.is_empty(), "{when}: {}", ran.outcome.reports[0]);
        assert_eq!(ran.found, ran.expected, "{when}");
    });
}

#[test]
fn proxies_need_fences() {
    caught(&[Kind::MissingProxyFence], "fence.proxy.async.shared::cta;", "");
    caught(&[Kind::MissingProxyFence], "fence.proxy.async.shared::cta;", "fence.proxy.async.global;");
    // The fence is executed by the writing threads, or by threads that know of the writes.
    let after = "bar.sync 1, 128; fence.proxy.async.shared::cta;";
    let text = PIPELINE.replacen("fence.proxy.async.shared::cta;\n    bar.sync 1, 128;", after, 1);
    each(&text, |ran, when| assert!(ran.outcome.reports.is_empty(), "{when}: {}", ran.outcome.reports[0]));
    caught(&[Kind::Mbarrier], "fence.mbarrier_init.release.cluster;", "");
    // A product reads shared memory right after a write.
    let write = "setp.lt.u32 p, i, 1; @p st.shared.u32 [s], zero; bar.sync 1, 128; wgmma.fence.sync.aligned;";
    caught(&[Kind::MissingProxyFence], FENCE, write);
}

#[test]
fn bytes_are_counted() {
    let stuck = [Kind::Deadlock, Kind::Mbarrier];
    caught(&stuck, "[empty], 16384;", "[empty], 16400;");
    let early = [Kind::Mbarrier, Kind::PendingCopy, Kind::UninitialisedShared, Kind::ReadAfterWrite];
    caught(&early, "[empty], 16384;", "[empty], 8192;");
    // The phase expects bytes that no copy delivers.
    let more = "@leads mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [s+49152], 16;";
    caught(&[Kind::Mbarrier], "// sent", more);
}

#[test]
fn loads_are_waited_for() {
    // The producer fills one more stage than the consumers read.
    caught(
        &[Kind::UnwaitedCopies],
        "setp.lt.u32 p, i, 4;\n    @p bra COPY;",
        "setp.lt.u32 p, i, 5; @p bra COPY;",
    );
    // These waits and arrivals create no order.
    let order = [Kind::WriteAfterRead, Kind::ReadAfterWrite, Kind::WriteAfterWrite];
    caught(
        &order,
        ".parity.shared::cta.b64 p, [full+49152]",
        ".parity.relaxed.cta.shared::cta.b64 p, [full+49152]",
    );
    caught(
        &order,
        ".parity.shared::cta.b64 p, [full+49168]",
        ".parity.relaxed.cta.shared::cta.b64 p, [full+49168]",
    );
    caught(
        &order,
        "mbarrier.arrive.shared::cta.b64 _, [full",
        "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [full",
    );
}

#[test]
fn stores_are_waited_for() {
    let wait = "@leads cp.async.bulk.wait_group.read 0;";
    caught(&[Kind::UnwaitedCopies], wait, "");
    caught(&[Kind::UnwaitedCopies], "@leads cp.async.bulk.commit_group;", "");
    let again = "add.u32 x, s, 32768; @leads st.shared.u32 [x], zero;";
    caught(&[Kind::WriteAfterRead], "// sent", again);
    let text = PIPELINE.replacen("// read", again, 1);
    each(&text, |ran, when| assert!(ran.outcome.reports.is_empty(), "{when}: {}", ran.outcome.reports[0]));
    // Another warp must learn that the store has read its source.
    let other = "setp.eq.u32 q, t, 32; add.u32 x, s, 32768; @q st.shared.u32 [x], zero;";
    caught(&[Kind::WriteAfterRead, Kind::ReadAfterWrite], "// read", other);
    let text = PIPELINE.replacen("// read", &format!("bar.sync 1, 128; {other}"), 1);
    each(&text, |ran, when| assert!(ran.outcome.reports.is_empty(), "{when}: {}", ran.outcome.reports[0]));
}

#[test]
fn descriptors_describe_tiles() {
    // The descriptor begins half a row further, a row further, or beyond shared memory, or it has unused
    // bits.
    caught(&[Kind::Wgmma], "add.u64 b, a, 512;", "add.u64 b, a, 519;");
    caught(&[Kind::Wgmma], "add.u64 b, a, 512;", "add.u64 b, a, 520;");
    caught(&[Kind::OutOfBounds], "add.u64 b, a, 512;", "add.u64 b, a, 8192;");
    caught(&[Kind::Wgmma], "add.u64 b, a, 512;", "add.u64 b, a, 0x4000;");
    caught(&[Kind::Wgmma], "add.u64 b, a, 512;", "cvt.u64.u32 b, lane; add.u64 b, b, a;");
    // Another swizzle gives wrong results, or reads bytes that were never written.
    let text = PIPELINE.replacen("0x4000004000000000", "0x8000004000000000", 1);
    each(&text, |ran, when| {
        assert!(!ran.outcome.reports.is_empty() || ran.found != ran.expected, "{when}");
    });
}

#[test]
fn warps_of_a_warpgroup_stay_together() {
    let arms = "setp.lt.u32 p, t, 32; @p bra ONE; wgmma.wait_group.sync.aligned 0; bra.uni BOTH;
        ONE: wgmma.wait_group.sync.aligned 0; BOTH:";
    caught(&[Kind::Wgmma], WAIT, arms);
    caught(&[Kind::Wgmma], COMMIT, &format!("setp.lt.u32 p, t, 32; @p bra NONE; {COMMIT} NONE:"));
    caught(&[Kind::Wgmma], "// in flight", "setp.lt.u32 p, t, 32; @p bra END;");
    caught(&[Kind::DivergentSync], COMMIT, &format!("setp.lt.u32 p, lane, 16; @p {COMMIT}"));
    // Code outside of both arms may run at any time.
    let apart = format!("setp.lt.u32 p, t, 32; @p bra ONE; bar.warp.sync -1; ONE: {WAIT}");
    let text = PIPELINE.replacen(WAIT, &apart, 1);
    each(&text, |ran, when| assert!(ran.outcome.reports.is_empty(), "{when}: {}", ran.outcome.reports[0]));
}

#[test]
fn registers_have_a_budget() {
    caught(&[Kind::RegisterBudget], "u32 232;", "u32 240;");
    caught(&[Kind::RegisterBudget], "u32 24;", "u32 136;");
    caught(&[Kind::RegisterBudget], "u32 232;", "u32 24;");
    caught(&[Kind::RegisterBudget], ".maxntid 256, 1, 1\n.minnctapersm 1\n", "");
    let dec = "setmaxnreg.dec.sync.aligned.u32 24;";
    caught(&[Kind::RegisterBudget], dec, &format!("setp.lt.u32 p, t, 160; @p {dec}"));
}

#[test]
fn boxes_lie_in_their_tensor_and_in_shared_memory() {
    caught(&[Kind::Misaligned], "add.u32 y, x, 8192;", "add.u32 y, x, 8208;");
    caught(&[Kind::OutOfBounds], "add.u32 y, x, 8192;", "add.u32 y, x, 65536;");
    caught(&[Kind::Misaligned], "[map+128, {z", "[map+32, {z");
    caught(&[Kind::BulkCopy], "[map+128, {z", "[map+64, {z");
    caught(&[Kind::Misaligned], ".param .align 64", ".param .align 16");
    let found = |change: fn(&mut ptx_sim::TensorMap<'_>)| {
        pipeline(PIPELINE, Options::default(), change).unwrap().outcome.reports.first().map(|r| r.kind)
    };
    assert_eq!(found(|_| {}), None);
    assert_eq!(found(|map| map.dims = &[256, 61]), Some(Kind::OutOfBounds));
    assert_eq!(found(|map| map.address = 1 << 20), Some(Kind::OutOfBounds));
    // A box with half of the rows has half of the bytes.
    assert_eq!(found(|map| map.box_dims = &[64, 32]), Some(Kind::Deadlock));
    let wrong = pipeline(PIPELINE, Options::default(), |map| {
        (map.box_dims, map.swizzle) = (&[64, 64], Swizzle::None);
    });
    let wrong = wrong.unwrap();
    assert!(wrong.found != wrong.expected);
}

/// Harmless mutants: a barrier number is only a name, and lanes without stores need no commit and no wait.
const HARMLESS: [(Operator, &str); 4] = [
    (Operator::BarrierNumber, "`bar.sync 0;` becomes `bar.sync 1;`"),
    (Operator::BarrierNumber, "`bar.sync 1, 128;` becomes `bar.sync 2, 128;`"),
    (Operator::DeleteGuard, "`@leads cp.async.bulk.commit_group;` becomes `cp.async.bulk.commit_group;`"),
    (
        Operator::DeleteGuard,
        "`@leads cp.async.bulk.wait_group.read 0;` becomes `cp.async.bulk.wait_group.read 0;`",
    ),
];

/// Tests mutants of copies, products, fences, counts and register budgets, one at a time.
#[test]
fn every_mutant_is_noticed() {
    let concerns = ["wgmma", "bulk", "fence", "mbarrier", "setmaxnreg", "bar.sync"];
    let all = mutants(PIPELINE, "k").unwrap();
    let all = all.iter().filter(|mutant| {
        mutant.operator != Operator::SwapNeighbours
            && concerns.iter().any(|word| mutant.description.contains(word))
    });
    let survives = |mutant: &&Mutant| {
        let options = Options { budget: 1_000_000, ..Options::default() };
        let ran =
            pipeline(&mutant.apply(PIPELINE), options, |_| {}).unwrap_or_else(|error| panic!("{error}"));
        ran.outcome.reports.is_empty() && ran.found == ran.expected
    };
    let survivors: Vec<_> = all.filter(survives).map(|it| (it.operator, &*it.description)).collect();
    assert_eq!(survivors, HARMLESS);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The text, in which some words are removed, doubled or exchanged. The text is wrong, but must cause no
    /// panic.
    #[test]
    fn damaged(
        edits in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..3), 1..6,
        ),
    ) {
        let mut words: Vec<&str> = PIPELINE.split(' ').collect();
        for (at, other, kind) in edits {
            let (at, other) = (at.index(words.len()), other.index(words.len()));
            match kind {
                0 => words[at] = "",
                1 => words.insert(at, words[other]),
                _ => words.swap(at, other),
            }
        }
        let text = words.join(" ");
        if Module::parse(&text).is_ok_and(|module| module.entry("k").is_some()) {
            let _ = pipeline(&text, Options { budget: 50_000, ..Options::default() }, |_| {});
        }
    }
}
