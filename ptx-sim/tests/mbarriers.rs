//! Tests mbarriers: the order that mbarriers create, and the reports on wrong uses. Also tests that a
//! handover through mbarriers needs each of its steps.

use common::{COPY, caught, caught_as, launch};
use ptx_sim::{
    Completion, Gpu, Kind, Module, Options, Profile,
    mutate::{Mutant, Operator, mutants},
    script::Script,
};

/// An mbarrier for 32 arrivals, at the start of shared memory.
const MBARRIER: &str = "setp.eq.u32 %p1, t, 0; @%p1 mbarrier.init.shared::cta.b64 [s], 32; /*init*/ \
                        bar.sync 0; add.u32 x, x, 64;";

#[test]
fn mbarriers() {
    let pipe = format!(
        "{MBARRIER} setp.lt.u32 %p2, t, 32; @%p2 bra P;
        W: mbarrier.try_wait.parity.shared::cta.b64 %p3, [s], 0; @!%p3 bra W;
        and.b32 %r2, t, 31; shl.b32 %r2, %r2, 2; add.u32 %r2, %r2, s; ld.shared.u32 %r1, [%r2+64]; \
         st.global.u32 [O], %r1; bra.uni E;
        P: st.shared.u32 [x], t; mbarrier.arrive.shared::cta.b64 _, [s]; E: ret;"
    );
    caught_as(
        // With the wrong parity, the wait passes too early, or never ends.
        &[Kind::ReadAfterWrite, Kind::WriteAfterRead, Kind::Deadlock],
        64,
        &pipe.replace("[s], 0; @!%p3 bra W;", "[s], 1; @!%p3 bra W;"),
        ("[s], 1", "[s], 0"),
    );
    let (store, arrive) = ("st.shared.u32 [x], t;", "mbarrier.arrive.shared::cta.b64 _, [s];");
    caught(Kind::Deadlock, 64, &pipe.replace(arrive, "/*arrive*/"), ("/*arrive*/", arrive));
    caught(
        Kind::Mbarrier,
        64,
        &pipe
            .replace("@%p1 mbarrier.init", "/*no*/ @%p4 mbarrier.init")
            .replace("setp.eq.u32 %p1, t, 0;", "setp.eq.u32 %p1, t, 0; setp.eq.u32 %p4, t, 99;"),
        ("t, 99", "t, 0"),
    );
    caught(
        Kind::Mbarrier,
        64,
        &pipe.replace("ret;", "bar.sync 0; st.shared.u32 [s], t; ret;"),
        ("bar.sync 0; st.shared.u32 [s], t;", ""),
    );
    caught(
        Kind::Mbarrier,
        64,
        &pipe.replace("/*init*/ bar.sync 0;", "/*init*/"),
        ("/*init*/", "bar.sync 0;"),
    );
    caught(Kind::Mbarrier, 64, &pipe.replace("_, [s];", "_, [s], 40;"), ("[s], 40", "[s]"));
    // Writes after the arrival are not handed over.
    let [good, early] = [format!("{store} {arrive}"), format!("{arrive} {store}")];
    caught(Kind::ReadAfterWrite, 64, &pipe.replace(&good, &early), (&early, &good));
    let stuck = launch(&pipe.replace(arrive, ""), 1, 64, Options::default()).unwrap();
    let message = &stuck.reports[0].message;
    assert!(message.contains("warp 1: polling the mbarrier at shared + 0x0"), "{message}");
    assert!(message.contains("mbarrier at shared + 0x0: phase 0, 32 of 32 arrivals missing"), "{message}");
}

/// One lane uses an mbarrier of four arrivals. The lane waits for it twice.
#[test]
fn arrivals_are_counted_and_dropped_by_their_number() {
    let alone = "setp.ne.u32 %p1, t, 0; @%p1 bra E; mbarrier.init.shared.b64 [s], 4;
        mbarrier.arrive_drop.shared.b64 %rd1, [s], 3; mbarrier.arrive.shared.b64 _, [s]; /*last*/
        W: mbarrier.test_wait.parity.shared.b64 %p3, [s], 0; @!%p3 bra W;
        mbarrier.arrive.shared.b64 _, [s]; /*next*/
        V: mbarrier.test_wait.parity.shared.b64 %p3, [s], 1; @!%p3 bra V;
        /*more*/ mbarrier.inval.shared.b64 [s]; E: ret;";
    // After one of four arrivals is dropped, the next phase expects three.
    caught(
        Kind::Deadlock,
        32,
        &alone.replace("[s], 3; ", "[s], 1; mbarrier.arrive.shared.b64 _, [s], 2; "),
        ("[s], 1; mbarrier.arrive.shared.b64 _, [s], 2; ", "[s], 3; "),
    );
    let none = "mov.u32 %r1, 0; mbarrier.arrive.shared.b64 _, [s], %r1;";
    caught(Kind::Mbarrier, 32, &alone.replace("/*more*/", none), (none, ""));
    // Without the invalidation, the unfinished phase would be reported at the block's end.
    let begun = "mbarrier.init.shared.b64 [s+8], 2; mbarrier.arrive.shared.b64 _, [s+8]; ";
    let gone = "mbarrier.inval.shared.b64 [s+8];";
    let whole = "mbarrier.init.shared.b64 [s+8], 1; mbarrier.arrive.shared.b64 _, [s+8]; ";
    caught(Kind::Mbarrier, 32, &alone.replace("/*more*/", &format!("{begun}{gone}")), (begun, whole));
    // At the block's end, a dropped arrival counts as an arrival.
    let dropped = "mbarrier.init.shared.b64 [s+8], 4; mbarrier.arrive_drop.shared.b64 _, [s+8];";
    caught(Kind::Mbarrier, 32, &alone.replace("/*more*/", dropped), (dropped, ""));
}

/// Tests of copies that an mbarrier watches.
#[test]
fn mbarriers_watch_copies() {
    let watched = format!(
        "{MBARRIER} setp.lt.u32 %p2, t, 32; @%p2 bra P; W: mbarrier.test_wait.parity.shared.b64 %p3, [s], \
         0; @!%p3 bra W;
        and.b32 %r2, t, 31; shl.b32 %r2, %r2, 4; add.u32 %r2, %r2, s; ld.shared.u32 %r1, [%r2+128]; \
         st.global.u32 [O], %r1; bra.uni E;
        P: {} /*own*/ cp.async.mbarrier.arrive.noinc.shared.b64 [s]; /*wait*/ cp.async.wait_all; E: ret;",
        COPY.replace("add.u32 x, x, s;", "add.u32 x, x, s; add.u32 x, x, 128;")
    );
    let arrive = "cp.async.mbarrier.arrive.noinc.shared.b64 [s];";
    caught(Kind::Deadlock, 64, &watched.replace(arrive, "/*arrive*/"), ("/*arrive*/", arrive));
    caught(
        Kind::UnwaitedCopies,
        64,
        &watched.replace("cp.async.wait_all;", ""),
        ("/*wait*/", "cp.async.wait_all;"),
    );
    // Without `.noinc`, the copies' arrivals raise the expected count, so the phase never ends.
    caught(
        Kind::Deadlock,
        64,
        &watched.replace("arrive.noinc", "arrive"),
        ("arrive.shared", "arrive.noinc.shared"),
    );
    // An ordinary arrival does not cover copies in flight.
    caught_as(
        &[Kind::PendingCopy, Kind::ReadAfterWrite],
        64,
        &watched.replace(arrive, "/*now*/ mbarrier.arrive.shared.b64 %rd1, [s];"),
        ("/*now*/ mbarrier", "cp.async.wait_all; mbarrier"),
    );
    // The copies' arrival does not cover ordinary writes.
    caught(
        Kind::ReadAfterWrite,
        64,
        &watched
            .replace("cp.async.cg.shared.global [x], [I], 16;", "/*store*/ st.shared.u32 [x], t;")
            .replace("/*own*/", "cp.async.cg.shared.global [x+1024], [I], 16;"),
        ("/*store*/ st.shared.u32 [x], t;", "cp.async.cg.shared.global [x], [I], 16;"),
    );
    // If the producer itself waits for watched copies, consumers that wait for the mbarrier still see them.
    let both =
        watched.replace("/*wait*/ cp.async.wait_all;", "cp.async.wait_all; /*dup*/ ld.shared.u32 %r5, [x];");
    caught(
        Kind::PendingCopy,
        64,
        &both.replace("cp.async.wait_all; /*dup*/", "/*wait*/"),
        ("/*wait*/", "cp.async.wait_all;"),
    );
    // The copies may have landed for the mbarrier before this wait, which covers them too: here, the copies
    // of a group, but not a copy behind the group.
    let group = both.replace("/*own*/", "cp.async.commit_group; cp.async.cg.shared.global [x+512], [I], 16;");
    let late = group.replace("cp.async.wait_all;", "cp.async.wait_group 0;");
    for seed in 0..30 {
        let options = Options { seed, completion: Completion::Eager, ..Options::default() };
        let reports = |text: &str| launch(text, 1, 64, options.clone()).unwrap().reports;
        for text in [&both, &group] {
            assert!(reports(text).is_empty(), "{seed}: {:?}", reports(text));
        }
        let behind = late.replace("ld.shared.u32 %r5, [x];", "ld.shared.u32 %r5, [x+512];");
        assert!(reports(&behind).iter().any(|report| report.kind != Kind::UnwaitedCopies), "{seed}");
        assert!(reports(&late).iter().all(|report| report.kind == Kind::UnwaitedCopies), "{seed}");
    }
}

/// A ring handed over by mbarriers.
const KERNEL: &str = include_str!("../filetests/handover.ptx");

/// Whether the reports or the results differ from the file's expectations under at least one schedule.
fn noticed(mutant: &Mutant) -> bool {
    let text = mutant.apply(KERNEL);
    let module = Module::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", mutant.description));
    let script = Script::parse(KERNEL).unwrap();
    let schedules =
        (0..6).flat_map(|seed| [Completion::Late, Completion::Eager].map(|completion| (seed, completion)));
    schedules.into_iter().any(|(seed, completion)| {
        let options = Options { seed, completion, budget: 100_000, ..Options::default() };
        let mut gpu = Gpu::new(Profile::by_name("l4").unwrap(), options);
        script.run(&mut gpu, &module).map_or(true, |runs| !runs[0].as_expected())
    })
}

#[test]
fn a_handover_by_mbarriers_has_no_superfluous_step() {
    let operators = [
        (Operator::DeleteInit, 4),
        (Operator::BarrierCount, 8),
        (Operator::DeleteArrive, 2),
        (Operator::DeleteWait, 3),
        (Operator::WrongPhase, 2),
        (Operator::DeleteBarrier, 1),
    ];
    let all = mutants(KERNEL, "handover").unwrap();
    for (operator, count) in operators {
        let mutants: Vec<_> = all.iter().filter(|mutant| mutant.operator == operator).collect();
        assert_eq!(mutants.len(), count, "{operator:?}");
        let missed: Vec<_> =
            mutants.iter().filter(|mutant| !noticed(mutant)).map(|mutant| &mutant.description).collect();
        assert!(missed.is_empty(), "{missed:#?}");
    }
}

/// Kernels whose arrivals, transactions and phases do not match, with the expected reports.
#[test]
fn mbarriers_are_balanced() {
    let arrive = "mbarrier.arrive.shared::cta.b64 %rd1, [s];";
    let wait = "W: mbarrier.test_wait.parity.shared::cta.b64 %p2, [s], 0; @!%p2 bra W;";
    let too_many = "gets more arrivals than its phase expects";
    for (count, then, wrong) in [
        (32, format!("{arrive} {wait}"), ""),
        // The count is one too small, or one too large.
        (31, format!("{arrive} {wait}"), too_many),
        (33, format!("{arrive} {wait}"), "no warp can make progress"),
        (64, arrive.to_string(), "is left in the middle of a phase: phase 0, 32 of 64 arrivals missing"),
        // The second arrival happens without knowledge that the first phase is complete.
        (32, format!("{arrive} {arrive}"), too_many),
        (32, format!("{arrive} {wait} {arrive}"), ""),
        (32, format!("{arrive} {}", wait.replace("], 0", "], 16")), "a parity that is neither 0 nor 1"),
        // The copies deliver the expected number of bytes, one byte less, or one byte more.
        (32, format!("{} {wait}", transactions(64, 64)), ""),
        (32, format!("{} {wait}", transactions(64, 63)), "no warp can make progress"),
        (
            32,
            transactions(64, 63),
            "is left in the middle of a phase: phase 0, 0 of 32 arrivals missing, 1 b",
        ),
        (32, transactions(64, 65), "-1 bytes outstanding"),
        // The phase expects more bytes than an mbarrier can count.
        (32, format!("{} {wait}", transactions(1_048_575, 1_048_575)), ""),
        (32, format!("{} {wait}", transactions(1_048_576, 1_048_576)), "expects more than 2^20 - 1 bytes"),
        // An arrival of this kind must not be the last one of a phase.
        (
            64,
            format!(
                "{} {arrive} {wait}",
                arrive.replace("arrive", "arrive.noComplete").replace("];", "], 1;")
            ),
            "",
        ),
        (
            32,
            format!("{} {wait}", arrive.replace("arrive", "arrive.noComplete").replace("];", "], 1;")),
            "completes its phase with an arrival that has .noComplete",
        ),
    ] {
        let init =
            format!("setp.eq.u32 %p1, t, 0; @%p1 mbarrier.init.shared::cta.b64 [s], {count}; bar.sync 0;");
        for seed in 0..3 {
            let options = Options { seed, ..Options::default() };
            let reports = launch(&format!("{init} {then}"), 1, 32, options).unwrap().reports;
            let message = reports.first().map_or("", |report| &report.message);
            let right = message.contains(wrong) && reports.is_empty() == wrong.is_empty();
            assert!(right, "count {count}, {then}: `{message}`, expected `{wrong}`");
        }
    }
}

/// The first warp waits for each phase. The second warp waits for the first phase after a later phase has
/// ended.
#[test]
fn who_waits_is_not_two_phases_behind() {
    let phase = |parity: u32| {
        format!(
            "mbarrier.arrive.shared::cta.b64 %rd1, [s]; W{parity}: \
             mbarrier.test_wait.parity.shared::cta.b64 %p2, [s], {parity}; @!%p2 bra W{parity};"
        )
    };
    for (phases, waits, wrong) in [
        (1, "parity.shared::cta.b64 %p2, [s], 0", ""),
        (2, "parity.shared::cta.b64 %p2, [s], 0", "two phases behind"),
        (2, "shared::cta.b64 %p2, [s], %rd3", "two phases behind"),
        (1, "shared::cta.b64 %p2, [s], %rd3", ""),
        // Before the first phase, the phase before it counts as complete.
        (0, "parity.shared::cta.b64 %p2, [s], 1", ""),
        (1, "parity.shared::cta.b64 %p2, [s], 1", "no warp can make progress"),
    ] {
        let taken: String = (0..phases).map(phase).collect();
        // The warps use a flag, because a barrier would hand over knowledge of the phases to the second warp.
        let body = format!(
            "setp.eq.u32 %p1, t, 0; mov.u64 %rd3, 0; @%p1 mbarrier.init.shared::cta.b64 [s], 32; bar.sync 0; \
             setp.ge.u32 %p3, t, 32; @%p3 bra B; {taken} @%p1 st.relaxed.cta.shared.u32 [s+16], 1; bra E; \
             B: ld.relaxed.cta.shared.u32 %r1, [s+16]; setp.eq.u32 %p4, %r1, 1; @!%p4 bra B; \
             V: mbarrier.test_wait.{waits}; @!%p2 bra V; E:"
        );
        let init = "setp.eq.u32 %p5, t, 0; @%p5 st.shared.u32 [s+16], 0; ".replace("%p5", "%p1");
        let body = body.replacen("mov.u64 %rd3, 0;", &format!("mov.u64 %rd3, 0; {init}"), 1);
        for seed in 0..3 {
            let reports = launch(&body, 1, 64, Options { seed, ..Options::default() }).unwrap().reports;
            let found = reports.iter().any(|report| report.message.contains(wrong));
            assert!(
                found != wrong.is_empty() && reports.is_empty() == wrong.is_empty(),
                "{phases}, {waits}: {reports:#?}"
            );
        }
    }
}

/// One thread expects `expected` bytes and completes `completed` bytes, then all threads arrive.
fn transactions(expected: u32, completed: u32) -> String {
    format!(
        "@%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [s], {expected}; @%p1 \
         mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [s], {completed}; \
         mbarrier.arrive.shared::cta.b64 _, [s];"
    )
}

/// Tests the ring of the handover with a count that is one too small or one too large.
#[test]
fn the_counts_of_a_ring_are_exact() {
    for (at, which) in [(1024, "full"), (1032, "empty")] {
        for (count, kinds) in [(31, [Kind::Mbarrier; 2]), (33, [Kind::Deadlock, Kind::Mbarrier])] {
            let changed = |at: u32| (format!("[%r4+{at}], 32;"), format!("[%r4+{at}], {count};"));
            let text = [changed(at), changed(at + 16)]
                .iter()
                .fold(KERNEL.to_string(), |text, (old, new)| text.replacen(old, new, 1));
            for seed in 0..4 {
                for completion in [Completion::Late, Completion::Eager, Completion::Random] {
                    let options = Options { seed, completion, ..Options::default() };
                    let mut gpu = Gpu::new(Profile::by_name("l4").unwrap(), options);
                    let script = Script::parse(KERNEL).unwrap();
                    let runs = script.run(&mut gpu, &Module::parse(&text).unwrap()).unwrap();
                    let found = &runs[0].outcome.reports;
                    assert!(
                        found.iter().any(|report| kinds.contains(&report.kind)),
                        "{which}, {count}, {found:?}"
                    );
                }
            }
        }
    }
}
