//! Tests that blocks, warps and lanes take fair turns. Every wait must end: the condition becomes true, or a
//! report follows.

use std::sync::{Arc, Mutex};

use common::{SHARED, launch, launch_on, module};
use ptx_sim::{Gpu, Kind, Launch, Options, Profile, Report, script::Script};

fn reports(body: &str, grid: u32, threads: u32, seed: u64) -> Vec<Report> {
    launch(body, grid, threads, Options { seed, patience: 200_000, ..Options::default() }).unwrap().reports
}

/// A thread that waits for a later thread must not keep the later thread from running.
#[test]
fn who_waits_lets_others_run() {
    let flag = "mov.u32 %r1, %ctaid.x; mov.u32 %r3, 1;";
    for (body, grid, threads) in [
        // The first block waits for the last block, the first warp waits for the second warp, and the taken
        // branch waits for the other branch.
        ("setp.ne.u32 %p1, %r1, 5; @%p1 bra W; st.release.gpu.u32 [I], %r3; bra E;", 6, 1),
        ("setp.lt.u32 %p1, t, 32; @%p1 bra W; st.release.gpu.u32 [I], %r3; bra E;", 1, 64),
        ("setp.lt.u32 %p1, t, 16; @%p1 bra W; st.release.gpu.u32 [I], %r3; bra E;", 1, 32),
        ("setp.ge.u32 %p1, t, 16; @%p1 bra W; st.release.gpu.u32 [I], %r3; bra E;", 1, 32),
        // There are three paths: lanes that wait for the last path do not keep it from running.
        (
            "setp.lt.u32 %p1, t, 8; @%p1 bra W; setp.lt.u32 %p1, t, 16; @!%p1 bra L; V: ld.acquire.gpu.u32 \
             %r2, [I+4]; setp.eq.u32 %p2, %r2, 0; @%p2 bra V; st.release.gpu.u32 [I], %r3; bra E; L: \
             st.release.gpu.u32 [I+4], %r3; bra E;",
            1,
            32,
        ),
    ] {
        let wait = "W: ld.acquire.gpu.u32 %r2, [I]; setp.eq.u32 %p2, %r2, 0; @%p2 bra W; E:";
        for seed in 0..6 {
            let found = reports(&format!("{flag} {body} {wait}"), grid, threads, seed);
            assert!(found.is_empty(), "{body}, seed {seed}: {}", found[0]);
        }
    }
}

/// CUDA promises no order in which blocks begin. A block that waits for blocks of lower indices may keep them
/// from running. A block that waits for blocks of lower tickets does not.
#[test]
fn who_waits_for_a_lower_index_may_wait_for_ever() {
    // Each block waits until the counter has its number, and then counts.
    let body = |number: &str| {
        format!(
            "setp.ne.u32 %p1, t, 0; @%p1 bra E; {number} W: ld.acquire.gpu.u32 %r2, [I]; setp.ne.u32 %p2, \
             %r2, %r1; @%p2 bra W; red.release.gpu.global.add.u32 [I], 1; E:"
        )
    };
    let (index, ticket) = ("mov.u32 %r1, %ctaid.x;", "atom.relaxed.gpu.global.add.u32 %r1, [I+4], 1;");
    // Two blocks of 1024 threads run at once.
    let profile = Profile { multiprocessors: 1, ..Profile::by_name("h200").unwrap() };
    for (number, may_wait) in [(index, true), (ticket, false)] {
        let ends = |seed| {
            let options = Options { seed, patience: 200_000, ..Options::default() };
            launch_on(profile.clone(), &body(number), 6, 1024, options).unwrap().reports.is_empty()
        };
        assert!(ends(0), "{number}: ascending");
        assert_eq!((1..12).all(ends), !may_wait, "{number}");
    }
}

/// A warp alternately polls an mbarrier and a flag. If no warp of its block can set the flag, another block
/// may.
#[test]
fn who_polls_an_mbarrier_may_wait_for_another_block() {
    let body = |sets: &str| {
        format!(
            "mov.u32 %r1, %ctaid.x; mov.u32 %r3, 1; setp.ne.u32 %p1, t, 0; @%p1 bra E;
            setp.ne.u32 %p2, %r1, 0; @%p2 bra S; mbarrier.init.shared.b64 [s], 1;
            W: mbarrier.test_wait.parity.shared.b64 %p3, [s], 0; @%p3 bra D;
            ld.acquire.gpu.u32 %r2, [I]; setp.eq.u32 %p4, %r2, 0; @%p4 bra W;
            D: mbarrier.inval.shared.b64 [s]; bra E;
            S: mov.u32 %r4, 0; L: add.u32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, 20000; @%p3 bra L; {sets} E:"
        )
    };
    for seed in 0..4 {
        let found = reports(&body("st.release.gpu.u32 [I], %r3;"), 2, 32, seed);
        assert!(found.is_empty(), "seed {seed}: {}", found[0]);
        let found = reports(&body(""), 2, 32, seed);
        assert_eq!(found[0].kind, Kind::Deadlock, "seed {seed}: {}", found[0]);
    }
}

#[test]
fn waiting_for_ever_is_reported_where_each_warp_stands() {
    let spin = "L: ld.volatile.global.u32 %r1, [I]; setp.eq.u32 %p1, %r1, 0; @%p1 bra L;";
    for (body, grid) in [("L: bra L;", 1), (spin, 1), (spin, 4), ("setp.lt.u32 %p1, t, 9; L: @%p1 bra L;", 1)]
    {
        let found = reports(body, grid, 64, 0);
        assert_eq!(found[0].kind, Kind::Runaway, "{body}");
        let message = &found[0].message;
        let words = ["200000 warp instructions", "warp 0: running, ptx line", "warp 1: ", "0 of"];
        words.iter().for_each(|word| assert!(message.contains(word), "{body}: {message}"));
    }
    // Blocks beyond the device's capacity cannot wait for each other.
    let all = "setp.ne.u32 %p1, t, 0; @%p1 bra E; red.global.add.u32 [I], 1; mov.u32 %r3, %nctaid.x; W: \
               ld.volatile.global.u32 %r2, [I]; setp.lt.u32 %p2, %r2, %r3; @%p2 bra W; E:";
    let (room, threads) = (132 * 2, 1024);
    let body = all.replace("sub.u64 O, O, o;", "");
    assert!(reports(&body, room, threads, 0).is_empty());
    assert_eq!(reports(&body, room + 1, threads, 0)[0].kind, Kind::Runaway);
}

#[test]
fn a_launch_has_a_budget_and_says_how_far_it_is() {
    // The memory changes all the time.
    let forever = "L: red.global.add.u32 [I], 1; bra L;";
    let options = Options { budget: 20_000_000, ..Options::default() };
    let params = |gpu: &mut Gpu| {
        let x = gpu.alloc("x", 4, 256).unwrap();
        gpu.fill(x, 0, 4).unwrap();
        [x, x].map(u64::to_le_bytes).concat()
    };
    let mut gpu = Gpu::new(Profile::by_name("h200").unwrap(), options);
    let said = Arc::new(Mutex::new(Vec::new()));
    let hear = Arc::clone(&said);
    gpu.watch(move |progress| hear.lock().unwrap().push(progress));
    let params = params(&mut gpu);
    let launch = Launch { dynamic_smem: SHARED, ..Launch::new([1; 3], [1, 1, 1], &params) };
    let reports = gpu.launch(&module(forever), "k", &launch).unwrap().reports;
    assert_eq!(reports[0].kind, Kind::Runaway);
    assert!(reports[0].message.contains("`budget` of 20000000"), "{}", reports[0].message);
    let said = said.lock().unwrap();
    assert_eq!(said.len(), 1);
    assert_eq!((said[0].ended, said[0].blocks), (0, 1));
    assert!(said[0].to_string().starts_with("0 of 1 blocks, 16 million"), "{}", said[0]);
}

#[test]
fn launch_files_name_both_limits() {
    for (limits, word) in [("patience 1000", "1000 warp"), ("budget 5000", "`budget` of 5000")] {
        let text = format!("buffer x u32 1 = 0\nrun k shared {SHARED} {limits} args x x\nreport runaway");
        let mut gpu = Gpu::new(Profile::by_name("h200").unwrap(), Options::default());
        let ran = Script::parse(&text).unwrap().run(&mut gpu, &module("L: bra L;")).unwrap();
        assert!(ran[0].as_expected());
        let message = &ran[0].outcome.reports[0].message;
        assert!(message.contains(word), "{message}");
        assert_eq!(*gpu.options_mut(), Options::default());
    }
}

/// The memory that a launch takes grows only with the number of touched pages.
#[test]
fn what_nobody_touches_takes_no_memory() {
    let mut gpu =
        Gpu::new(Profile::by_name("h200").unwrap(), Options { budget: 100_000, ..Options::default() });
    let large = gpu.alloc("large", 1 << 35, 256).unwrap();
    gpu.write(large + (1 << 34), &[1, 2, 3, 4]).unwrap();
    let params = [large + (1 << 34); 2].map(u64::to_le_bytes).concat();
    let launch = Launch { dynamic_smem: SHARED, ..Launch::new([i32::MAX as u32, 1, 1], [1, 1, 1], &params) };
    let outcome = gpu.launch(&module("ld.global.u32 %r1, [I];"), "k", &launch).unwrap();
    let kinds: Vec<_> = outcome.reports.iter().map(|report| report.kind).collect();
    assert_eq!(kinds, [Kind::Runaway]);
    let launch = Launch { grid: [1; 3], block: [1024, 1, 1], ..launch };
    for (bytes, fits) in [(1u64 << 19, true), ((1 << 19) + 16, false), (1 << 31, false)] {
        let local = format!(".local .align 16 .b8 depot[{bytes}]; st.local.u32 [depot+4096], t;");
        match gpu.launch(&module(&local), "k", &launch) {
            Ok(outcome) => assert!(fits && outcome.reports.is_empty(), "{bytes}"),
            Err(error) => {
                let refused = matches!(error, ptx_sim::LaunchError::LocalMemory { limit: 0x8_0000, .. });
                assert!(!fits && refused, "{bytes}: {error}");
            }
        }
    }
}
