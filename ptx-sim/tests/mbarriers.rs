//! mbarriers: what they order, how they are misused, and that no step of a handover by them is superfluous.

mod common;

use common::{COPY, caught, caught_as, launch};
use ptx_sim::{
    Completion, Gpu, Kind, Module, Options, Profile,
    mutate::{Mutant, Operator, mutants},
    script::Script,
};

/// An mbarrier for 32 arrivals, in front of everything else in shared memory.
const MBARRIER: &str =
    "setp.eq.u32 %p1, t, 0; @%p1 mbarrier.init.shared::cta.b64 [s], 32; /*init*/ bar.sync 0; add.u32 x, x, 64;";

#[test]
fn mbarriers() {
    let pipe = format!(
        "{MBARRIER} setp.lt.u32 %p2, t, 32; @%p2 bra P;
        W: mbarrier.try_wait.parity.shared::cta.b64 %p3, [s], 0; @!%p3 bra W;
        and.b32 %r2, t, 31; shl.b32 %r2, %r2, 2; add.u32 %r2, %r2, s; ld.shared.u32 %r1, [%r2+64]; st.global.u32 [O], %r1; bra.uni E;
        P: st.shared.u32 [x], t; mbarrier.arrive.shared::cta.b64 _, [s]; E: ret;"
    );
    caught_as(
        // The wrong parity: too early, or for ever.
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
    caught(Kind::Mbarrier, 64, &pipe.replace("/*init*/ bar.sync 0;", "/*init*/"), ("/*init*/", "bar.sync 0;"));
    caught(Kind::Mbarrier, 64, &pipe.replace("_, [s];", "_, [s], 40;"), ("[s], 40", "[s]"));
    // What is written after the arrival is not handed over.
    let [good, early] = [format!("{store} {arrive}"), format!("{arrive} {store}")];
    caught(Kind::ReadAfterWrite, 64, &pipe.replace(&good, &early), (&early, &good));
    let stuck = launch(&pipe.replace(arrive, ""), 1, 64, Options::default()).unwrap();
    let message = &stuck.reports[0].message;
    assert!(message.contains("warp 1: polling the mbarrier at shared + 0x0"), "{message}");
    assert!(message.contains("mbarrier at shared + 0x0: phase 0, 32 of 32 arrivals missing"), "{message}");
}

/// Copies that an mbarrier watches.
#[test]
fn mbarriers_watch_copies() {
    let watched = format!(
        "{MBARRIER} setp.lt.u32 %p2, t, 32; @%p2 bra P; W: mbarrier.test_wait.parity.shared.b64 %p3, [s], 0; @!%p3 bra W;
        and.b32 %r2, t, 31; shl.b32 %r2, %r2, 4; add.u32 %r2, %r2, s; ld.shared.u32 %r1, [%r2+128]; st.global.u32 [O], %r1; bra.uni E;
        P: {} /*own*/ cp.async.mbarrier.arrive.noinc.shared.b64 [s]; /*wait*/ cp.async.wait_all; E: ret;",
        COPY.replace("add.u32 x, x, s;", "add.u32 x, x, s; add.u32 x, x, 128;")
    );
    let arrive = "cp.async.mbarrier.arrive.noinc.shared.b64 [s];";
    caught(Kind::Deadlock, 64, &watched.replace(arrive, "/*arrive*/"), ("/*arrive*/", arrive));
    caught(Kind::UnwaitedCopies, 64, &watched.replace("cp.async.wait_all;", ""), ("/*wait*/", "cp.async.wait_all;"));
    // Without `.noinc` the copies' arrivals count as expected anew, so that the phase lasts for ever.
    caught(Kind::Deadlock, 64, &watched.replace("arrive.noinc", "arrive"), ("arrive.shared", "arrive.noinc.shared"));
    // An ordinary arrival says nothing of copies under way.
    caught_as(
        &[Kind::PendingCopy, Kind::ReadAfterWrite],
        64,
        &watched.replace(arrive, "/*now*/ mbarrier.arrive.shared.b64 %rd1, [s];"),
        ("/*now*/ mbarrier", "cp.async.wait_all; mbarrier"),
    );
    // The copies' arrival says nothing of ordinary writes.
    caught(
        Kind::ReadAfterWrite,
        64,
        &watched
            .replace("cp.async.cg.shared.global [x], [I], 16;", "/*store*/ st.shared.u32 [x], t;")
            .replace("/*own*/", "cp.async.cg.shared.global [x+1024], [I], 16;"),
        ("/*store*/ st.shared.u32 [x], t;", "cp.async.cg.shared.global [x], [I], 16;"),
    );
    // The producer's own wait for watched copies takes nothing from those who wait for the mbarrier.
    let both = watched.replace("/*wait*/ cp.async.wait_all;", "cp.async.wait_all; /*dup*/ ld.shared.u32 %r5, [x];");
    caught(
        Kind::PendingCopy,
        64,
        &both.replace("cp.async.wait_all; /*dup*/", "/*wait*/"),
        ("/*wait*/", "cp.async.wait_all;"),
    );
}

/// A ring handed over by mbarriers.
const KERNEL: &str = include_str!("../filetests/handover.ptx");

/// Whether reports or results of some schedule differ from what the file says.
fn noticed(mutant: &Mutant) -> bool {
    let text = mutant.apply(KERNEL);
    let module = Module::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", mutant.description));
    let script = Script::parse(KERNEL).unwrap();
    let schedules = (0..6).flat_map(|seed| [Completion::Late, Completion::Eager].map(|completion| (seed, completion)));
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
        (Operator::BarrierCount, 4),
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
