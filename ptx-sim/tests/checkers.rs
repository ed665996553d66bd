//! Tests that each checker catches a planted bug, and reports nothing for the kernel without the bug.

use common::{COPY, SHARED, caught, launch, module};
use ptx_sim::{Gpu, Kind, Launch, LaunchError, Module, Options, Profile};

/// Each thread writes its own word. After the placeholder, each thread reads the word of the thread whose
/// index is 32 higher.
const EXCHANGE: &str = "st.shared.u32 [x], t; /*here*/ xor.b32 x, t, 32; shl.b32 x, x, 2; add.u32 x, x, s; \
                        ld.shared.u32 %r1, [x]; st.global.u32 [O], %r1;";
#[test]
fn memcheck() {
    caught(Kind::OutOfBounds, 32, "ld.global.u32 %r1, [I+1024]; st.global.u32 [O], %r1;", ("+1024", "+1020"));
    caught(Kind::OutOfBounds, 32, "ld.global.u32 %r1, [I+-4]; st.global.u32 [O], %r1;", ("+-4", ""));
    caught(Kind::OutOfBounds, 1, "st.shared.u32 [s+4096], t;", ("4096", "4092"));
    caught(Kind::OutOfBounds, 32, "mov.u64 %rd1, 64; st.global.u32 [%rd1], t;", ("[%rd1]", "[O]"));
    caught(Kind::Misaligned, 32, "ld.global.v2.u32 {%r1, %r2}, [I+4]; st.global.u32 [O], %r1;", ("+4", "+8"));
    caught(
        Kind::WrongSpace,
        32,
        "cvta.shared.u64 %rd1, o; st.global.u32 [%rd1], t;",
        ("cvta.shared.u64 %rd1, o", "mov.b64 %rd1, O"),
    );
    let depot = ".local .align 16 .b8 depot[16]; mov.u64 %rd1, depot; cvta.local.u64 %rd1, %rd1; \
                 st.shared.u32 [x], t; bar.warp.sync -1; cvt.u64.u32 %rd2, s; cvta.shared.u64 %rd2, %rd2; \
                 ldmatrix.sync.aligned.m8n8.x1.b16 {%r1}, [%rd1]; st.global.u32 [O], %r1;";
    caught(Kind::WrongSpace, 32, depot, ("{%r1}, [%rd1]", "{%r1}, [%rd2]"));
    caught(Kind::ReadOnly, 32, "st.global.u32 [O], t; ld.global.nc.u32 %r1, [O];", (".nc", ""));
}

#[test]
fn freed_memory() {
    let mut gpu = Gpu::new(Profile::by_name("h200").unwrap(), Options::default());
    let from = gpu.alloc("in", 1024, 256).unwrap();
    let to = gpu.alloc("out", 1024, 256).unwrap();
    gpu.free(to).unwrap();
    let params = [from, to].map(u64::to_le_bytes).concat();
    let launch = Launch { dynamic_smem: SHARED, ..Launch::new([1; 3], [32, 1, 1], &params) };
    let outcome = gpu.launch(&module("st.global.u32 [O], t;"), "k", &launch).unwrap();
    assert_eq!(outcome.reports[0].kind, Kind::UseAfterFree);
    assert_eq!(outcome.reports[0].address.as_ref().unwrap().buffer, "out");
}

#[test]
fn racecheck() {
    caught(Kind::ReadAfterWrite, 64, EXCHANGE, ("/*here*/", "bar.sync 0;"));
    let refill = EXCHANGE.replacen("/*here*/", "bar.sync 0;", 1) + "/*again*/ st.shared.u32 [x], t;";
    let own = "xor.b32 x, t, 0; shl.b32 x, x, 2; add.u32 x, x, s; ";
    let refill = refill.replace("/*again*/", &format!("/*again*/ {own}"));
    caught(Kind::WriteAfterRead, 64, &refill, ("/*again*/", "bar.sync 0;"));
    caught(Kind::WriteAfterWrite, 64, "st.shared.u32 [s], t; ", ("[s]", "[x]"));
    let within = EXCHANGE.replace("xor.b32 x, t, 32", "xor.b32 x, t, 1");
    caught(Kind::WarpRace, 32, &within, ("/*here*/", "bar.warp.sync -1;"));
    // 16-bit stores of two warps to the same word are no race.
    let halves = "cvt.u16.u32 h, t; shr.u32 %r1, t, 5; shl.b32 %r2, t, 2; and.b32 %r2, %r2, 127; shl.b32 \
                  %r1, %r1, 1; add.u32 %r2, %r2, %r1; add.u32 %r2, %r2, s; st.shared.u16 [%r2], h;";
    let outcome = launch(&format!(".reg .b16 h; {halves}"), 1, 64, Options::default()).unwrap();
    assert!(outcome.reports.is_empty(), "{}", outcome.reports[0]);
}

#[test]
fn asynchronous_copies() {
    let read = "ld.shared.u32 %r1, [x]; st.global.u32 [O], %r1;";
    let whole = format!("{COPY} cp.async.commit_group; /*wait*/ {read} cp.async.wait_all;");
    caught(Kind::PendingCopy, 32, &whole, ("/*wait*/", "cp.async.wait_group 0;"));
    let weak = format!("{COPY} cp.async.commit_group; cp.async.wait_group 1; {read} cp.async.wait_all;");
    caught(Kind::PendingCopy, 32, &weak, ("wait_group 1", "wait_group 0"));
    let uncommitted = format!("{COPY} /*commit*/ cp.async.wait_group 0; {read} cp.async.wait_all;");
    caught(Kind::PendingCopy, 32, &uncommitted, ("/*commit*/", "cp.async.commit_group;"));
    caught(
        Kind::UnwaitedCopies,
        32,
        &format!("{COPY} cp.async.commit_group; /*wait*/"),
        ("/*wait*/", "cp.async.wait_all;"),
    );
    let other = "xor.b32 x, t, 32; shl.b32 x, x, 4; add.u32 x, x, s;";
    let unshared = format!("{COPY} cp.async.wait_all; /*bar*/ {other} {read}");
    caught(Kind::ReadAfterWrite, 64, &unshared, ("/*bar*/", "bar.sync 0;"));
    let refilled =
        format!("{COPY} cp.async.wait_all; bar.sync 0; {other} {read} /*bar*/ {COPY} cp.async.wait_all;");
    let refilled = refilled.replacen(
        &format!("/*bar*/ {COPY}"),
        &format!("/*bar*/ {}", COPY.replace("add.u64 I, I, o;", "")),
        1,
    );
    caught(Kind::WriteAfterRead, 64, &refilled, ("/*bar*/", "bar.sync 0;"));
}

#[test]
fn initcheck() {
    caught(
        Kind::UninitialisedRegister,
        32,
        "/*set*/ add.u32 %r2, %r1, 1; st.global.u32 [O], %r2;",
        ("/*set*/", "mov.u32 %r1, 0;"),
    );
    caught(
        Kind::UninitialisedShared,
        32,
        "/*set*/ ld.shared.u32 %r1, [x]; st.global.u32 [O], %r1;",
        ("/*set*/", "st.shared.u32 [x], t;"),
    );
    caught(
        Kind::UninitialisedGlobal,
        32,
        "/*set*/ ld.global.u32 %r1, [O];",
        ("/*set*/", "st.global.u32 [O], t;"),
    );
    let depot = ".local .align 4 .b8 depot[4]; /*set*/ ld.local.u32 %r1, [depot]; st.global.u32 [O], %r1;";
    caught(Kind::UninitialisedLocal, 32, depot, ("/*set*/", "st.local.u32 [depot], t;"));
    // Only half of the lanes have written a value.
    let half = "setp.lt.u32 %p1, t, 16; @%p1 mov.u32 %r1, 0; add.u32 %r2, %r1, 1; st.global.u32 [O], %r2;";
    caught(Kind::UninitialisedRegister, 32, half, ("@%p1 ", ""));
}

#[test]
fn synccheck() {
    let divergent =
        "setp.lt.u32 %p1, t, 16; @%p1 bra A; bar.sync 0; bra.uni B; A: bar.sync 0; B: st.global.u32 [O], t;";
    caught(Kind::DivergentBarrier, 32, divergent, ("t, 16", "t, 32"));
    caught(Kind::DivergentBarrier, 32, "setp.lt.u32 %p1, t, 16; @%p1 bar.sync 0;", ("@%p1 ", ""));
    let shuffle =
        "setp.lt.u32 %p1, t, 16; @%p1 bra A; shfl.sync.bfly.b32 %r1, t, 1, 31, -1; A: st.global.u32 [O], t;";
    caught(Kind::DivergentSync, 32, shuffle, ("31, -1", "31, 0xffff0000"));
    let product =
        "setp.lt.u32 %p1, t, 16; @%p1 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [s]; bar.sync 0;";
    caught(
        Kind::DivergentSync,
        32,
        &format!(
            "shl.b32 %r3, t, 4; add.u32 %r3, %r3, s; st.shared.v4.u32 [%r3], {{t, t, t, t}}; bar.warp.sync \
             -1; {product}"
        ),
        ("@%p1 ldm", "ldm"),
    );
    caught(Kind::MissingParticipants, 64, "setp.lt.u32 %p1, t, 32; @%p1 ret; bar.sync 0;", ("@%p1 ret;", ""));
    caught(Kind::BarrierCount, 64, "bar.sync 1, 48;", ("48", "64"));
    caught(Kind::BarrierCount, 64, "bar.sync 16;", ("16", "15"));
    let counts = "setp.lt.u32 %p1, t, 32; @%p1 bra A; bar.sync 1, 96; bra.uni B; A: bar.sync 1, 64; B: \
                  st.global.u32 [O], t;";
    caught(
        Kind::BarrierCount,
        96,
        &format!("setp.ge.u32 %p2, t, 64; @%p2 bra B; {counts}"),
        ("1, 96", "1, 64"),
    );
}

#[test]
fn named_barriers_order_producer_and_consumer() {
    let pipe = "setp.lt.u32 %p1, t, 32; @%p1 bra P; bar.sync 2, 64; and.b32 %r2, t, 31; shl.b32 %r2, %r2, \
                2; add.u32 %r2, %r2, s; ld.shared.u32 %r1, [%r2]; st.global.u32 [O], %r1; bra.uni E; P: \
                st.shared.u32 [x], t; bar.arrive 2, 64; E:";
    caught(
        Kind::ReadAfterWrite,
        64,
        &pipe
            .replace(
                "st.shared.u32 [x], t; bar.arrive 2, 64;",
                "bar.arrive 2, 64; /*late*/ st.shared.u32 [x], t;",
            )
            .replace(" E:", " E: bar.sync 3, 64; ld.shared.u32 %r5, [s];"),
        ("bar.arrive 2, 64; /*late*/ st.shared.u32 [x], t;", "st.shared.u32 [x], t; bar.arrive 2, 64;"),
    );
}

/// The threads pass a turn through a ring. A thread passes on the first turn after it has taken it.
#[test]
fn a_warp_may_arrive_for_itself() {
    let twice = "setp.ge.u32 %p1, t, 32; @%p1 bra E; bar.arrive 2, 64; bar.arrive 2, 64; E:";
    caught(Kind::BarrierCount, 64, twice, ("bar.arrive 2, 64; E:", "bar.sync 2, 64; E:"));
}

/// LLVM selects between two values of which one is undefined. The use of the selected value is an error if
/// this value is undefined.
#[test]
fn selections_move_what_they_take() {
    let used = "setp.lt.u32 %p1, t, 16; mov.u32 %r1, 7; selp.b32 %r2, %r1, %r3, %p1; st.global.u32 [O], \
                %r2;";
    caught(Kind::UninitialisedRegister, 32, used, ("st.global", "@%p1 st.global"));
    let wide = "setp.lt.u32 %p1, t, 16; shl.b32 %r1, t, 3; cvt.u64.u32 o, %r1; ld.param.u64 O, [out]; \
                add.u64 O, O, o; selp.b64 %rd1, %rd2, o, %p1; st.global.u64 [O], %rd1;";
    caught(Kind::UninitialisedRegister, 32, wide, ("st.global", "@!%p1 st.global"));
}

#[test]
fn deadlocks_say_where_every_warp_stands() {
    let stuck = "setp.lt.u32 %p1, t, 32; @%p1 bra P; bar.sync 1, 64; bra.uni E; P: bar.sync 2, 64; E: ret;";
    let outcome = launch(stuck, 1, 64, Options::default()).unwrap();
    assert_eq!(outcome.reports[0].kind, Kind::Deadlock);
    let message = &outcome.reports[0].message;
    assert!(
        message.contains("warp 0: waiting at barrier 2") && message.contains("warp 1: waiting at barrier 1"),
        "{message}"
    );
    let outcome = launch("L: bra L;", 1, 64, Options { budget: 100_000, ..Options::default() }).unwrap();
    assert_eq!(outcome.reports[0].kind, Kind::Runaway);
    assert!(outcome.reports[0].message.contains("warp 1: running"), "{}", outcome.reports[0].message);
    let outcome = launch("trap;", 1, 32, Options::default()).unwrap();
    assert_eq!(outcome.reports[0].kind, Kind::Trap);
}

#[test]
fn blocks_must_be_ordered() {
    let grid = |body: &str| launch(body, 2, 32, Options::default()).unwrap().reports;
    let different = "mov.u32 %r1, %ctaid.x; add.u32 %r1, %r1, t; st.global.u32 [O], %r1;";
    assert_eq!(grid(different)[0].kind, Kind::GlobalRace);
    // A write of the value that is already there disturbs no other thread.
    assert!(grid("st.global.u32 [O], t;").is_empty());
    let apart =
        "mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd1, %r1, 128; add.u64 O, O, %rd1; st.global.u32 [O], t;";
    assert!(grid(apart).is_empty());
    let atomics = "red.global.add.u32 [I], t;";
    assert!(grid(atomics).is_empty());
    // The last block reads data that all blocks have written. The block needs fences around the counter.
    let last = |fence: &str| {
        format!(
            "{apart} bar.sync 0; {fence} setp.eq.u32 %p1, t, 0; mov.u32 %r2, 0; @%p1 atom.global.add.u32 \
             %r2, [I], 1; {fence}
            shfl.sync.idx.b32 %r2, %r2, 0, 31, -1; setp.ne.u32 %p2, %r2, 1; @%p2 ret; sub.u64 O, O, 128; \
             ld.global.u32 %r3, [O];"
        )
    };
    assert!(grid(&last("membar.gl;")).is_empty());
    assert_eq!(grid(&last(""))[0].kind, Kind::GlobalRace);
}

/// The rules for warps and lanes in shared memory also hold in device memory.
#[test]
fn threads_of_a_block_must_be_ordered_in_device_memory() {
    // Either each thread writes its word of one row, or all threads write the same word.
    let row = "/*row*/ sub.u64 O, O, o; st.global.u32 [O], t;";
    for threads in [32, 128] {
        caught(Kind::GlobalRace, threads, row, ("sub.u64 O, O, o;", ""));
    }
    // Each thread writes its own word. After the placeholder, it reads its neighbour's word, in this warp or
    // in the other.
    for (neighbour, order) in [(1, "bar.warp.sync -1;"), (32, "bar.sync 0;")] {
        let exchange = format!(
            "st.global.u32 [O], t; /*here*/ xor.b32 x, t, {neighbour}; mul.wide.u32 %rd1, x, 4; \
             sub.u64 O, O, o; add.u64 O, O, %rd1; ld.global.u32 %r1, [O]; /*again*/"
        );
        let refill = exchange.replace("/*here*/", order) + "add.u32 %r1, %r1, 1; st.global.u32 [O], %r1;";
        let own = format!("{order} sub.u64 O, O, %rd1; add.u64 O, O, o;");
        caught(Kind::GlobalRace, 64, &exchange, ("/*here*/", order));
        let other = refill.replace("/*again*/", "/*own*/ sub.u64 O, O, %rd1; add.u64 O, O, o;");
        caught(Kind::GlobalRace, 64, &other, ("/*own*/ sub.u64 O, O, %rd1; add.u64 O, O, o;", &own));
    }
    // The copy reads its source from device memory.
    let copied = "sub.u64 O, O, o; st.global.u32 [O], %r4; /*bar*/ cp.async.ca.shared.global [x], [O], 4; \
                  cp.async.wait_all;";
    let copied = format!("mov.u32 %r4, 7; setp.eq.u32 %p1, t, 0; {}", copied.replace("st.", "@%p1 st."));
    caught(Kind::GlobalRace, 64, &copied, ("/*bar*/", "bar.sync 0;"));
    let reports = launch(row, 1, 128, Options::default()).unwrap().reports;
    let sides = |report: &ptx_sim::Report| report.first.as_ref().unwrap().place.ptx_line;
    assert_eq!(sides(&reports[0]), reports[0].second.place.ptx_line);
    assert_eq!(reports[0].address.as_ref().unwrap().buffer, "out");
}

#[test]
fn launches_are_checked() {
    let code = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 in, .param \
                .u64 out) { ret; }";
    let code = Module::parse(code).unwrap();
    let mut gpu = Gpu::new(Profile::by_name("l4").unwrap(), Options::default());
    let good = Launch::new([1; 3], [32, 1, 1], &[0; 16]);
    gpu.launch(&code, "k", &good).unwrap();
    type Case = (fn(&mut Launch<'static>), fn(&LaunchError) -> bool);
    let cases: [Case; 7] = [
        (|launch| launch.grid = [0, 1, 1], |error| matches!(error, LaunchError::Grid { .. })),
        (|launch| launch.grid = [1, 70000, 1], |error| matches!(error, LaunchError::Grid { .. })),
        (|launch| launch.block = [1025, 1, 1], |error| matches!(error, LaunchError::BlockSize { .. })),
        (
            |launch| launch.params = &[0; 12],
            |error| matches!(error, LaunchError::ParamSize { wanted: 16, given: 12, .. }),
        ),
        (
            |launch| launch.dynamic_smem = 60_000,
            |error| matches!(error, LaunchError::SharedMemoryOptIn { opt_in: 0, .. }),
        ),
        (
            |launch| (launch.dynamic_smem, launch.smem_opt_in) = (60_000, 50_000),
            |error| matches!(error, LaunchError::SharedMemoryOptIn { opt_in: 50_000, .. }),
        ),
        (
            |launch| (launch.dynamic_smem, launch.smem_opt_in) = (110_000, 110_000),
            |error| matches!(error, LaunchError::SharedMemory { limit: 101_376, .. }),
        ),
    ];
    for (change, expected) in cases {
        let mut launch = Launch { params: &[0; 16], ..good };
        change(&mut launch);
        let error = gpu.launch(&code, "k", &launch).unwrap_err();
        assert!(expected(&error), "{launch:?}: {error}");
    }
    assert!(matches!(gpu.launch(&code, "none", &good), Err(LaunchError::UnknownEntry { .. })));
    let shaped =
        ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k() .reqntid 64, 1, 1 { ret; }";
    let shaped = Module::parse(shaped).unwrap();
    let launch = Launch { params: &[], ..good };
    assert!(matches!(gpu.launch(&shaped, "k", &launch), Err(LaunchError::Target { .. })));
    let mut hopper = Gpu::new(Profile::by_name("H200").unwrap(), Options::default());
    assert!(matches!(hopper.launch(&shaped, "k", &launch), Err(LaunchError::BlockShape { .. })));
    assert!(Profile::by_name("gtx970").is_err());
}

#[test]
fn instructions_that_are_not_executed_are_errors_of_the_launch() {
    // No lane reaches this instruction.
    let body = "setp.eq.u32 %p1, t, 77;\n@%p1 bra A;\nbra B;\nA: /*here*/\nB: st.global.u32 [O], t;";
    assert!(launch(body, 1, 32, Options::default()).unwrap().reports.is_empty());
    for (instruction, reason) in [
        ("mapa.u64 %rd1, I, t;", "clusters of one"),
        ("add.u32 %rd1, t, t;", "register %rd1 has the wrong width"),
        ("add.rubbish.u32 t, t, t;", "does not know the word `.rubbish`"),
    ] {
        let error = launch(&body.replace("/*here*/", instruction), 1, 32, Options::default()).unwrap_err();
        assert!(error.to_string().starts_with(&format!("ptx line 12: `{instruction}`: ")), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn reports_name_both_sides() {
    let outcome = launch(EXCHANGE, 1, 64, Options::default()).unwrap();
    // Warp 0 runs first. Warp 0 therefore reads before warp 1 has written.
    let report = outcome.reports.iter().find(|report| report.kind == Kind::WriteAfterRead).unwrap();
    assert!(report.first.as_ref().unwrap().place.instruction.contains("ld.shared.u32"), "{report}");
    assert!(report.second.place.instruction.contains("st.shared.u32"), "{report}");
    assert!(report.to_json().contains("\"kind\":\"write-after-read\""));
    assert!(report.display(true).to_string().contains("\x1b["));
    assert!(!report.to_string().contains("\x1b["));
}

#[test]
fn a_copy_reads_no_more_than_it_writes() {
    let copy = COPY.replace("[I], 16;", "[I], 16, %r1; cp.async.wait_all;");
    let body = format!("mov.u32 %r1, 17; {copy}");
    caught(Kind::OutOfBounds, 32, &body, ("%r1, 17", "%r1, 15"));
}
