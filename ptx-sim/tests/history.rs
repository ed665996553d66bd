//! Tests that older accesses still count after newer ones. An older access counts for accesses that nothing
//! orders after it, and for accesses that need order with it but not with the newer accesses.

use common::launch;
use ptx_sim::{Kind, Options};

/// Checks the reports that every schedule must make for `body`. Only the first thread of each warp passes
/// `%p1`.
fn check(threads: u32, body: &str, expected: &[Kind]) {
    let body = format!("and.b32 %r1, t, 31; setp.eq.u32 %p1, %r1, 0; shr.u32 %r2, t, 5; {body}");
    for seed in 0..6 {
        let reports = launch(&body, 1, threads, Options { seed, ..Options::default() }).unwrap().reports;
        let kinds: Vec<_> = reports.iter().map(|report| report.kind).collect();
        let right =
            if expected.is_empty() { kinds.is_empty() } else { kinds.iter().any(|k| expected.contains(k)) };
        assert!(right, "{body}, seed {seed}: {reports:#?}, expected one of {expected:?}");
    }
}

/// The kinds of races in device memory, or in shared memory.
fn races(space: &str) -> &'static [Kind] {
    match space {
        "global" => &[Kind::GlobalRace],
        _ => &[Kind::ReadAfterWrite, Kind::WriteAfterRead, Kind::WriteAfterWrite],
    }
}

/// Two warps use atomics to count. The third warp knows what the second did, and knows what the first did
/// only if it waits for the first warp too.
#[test]
fn an_atomic_is_not_forgotten_for_the_next() {
    for (space, at) in [("global", "I"), ("shared", "s")] {
        let init = if space == "shared" { "@%p1 st.shared.u32 [s], 0; bar.sync 0;" } else { "" };
        for last in ["st.SPACE.u32 [AT], 7;", "ld.SPACE.u32 %r3, [AT];"] {
            for (waits, threads) in [("%r2, 0", 64), ("%r2, 99", 96)] {
                let body = format!(
                    "{init} setp.eq.u32 %p2, %r2, 2; @%p2 bra C; @%p1 red.relaxed.gpu.SPACE.add.u32 [AT], 1;
                     setp.eq.u32 %p3, {waits}; @%p3 bra E; bar.sync 1, {threads}; bra E;
                     C: bar.sync 1, {threads}; @%p1 {last} E:"
                );
                let body = body.replace("SPACE", space).replace("AT", at);
                check(96, &body, if threads == 64 { races(space) } else { &[] });
            }
        }
    }
}

/// An access that needs no order with an atomic may need order with the plain store before it.
#[test]
fn a_plain_store_is_not_forgotten_for_an_atomic() {
    let ordered = "bar.sync 0;";
    for (space, at) in [("global", "I"), ("shared", "s")] {
        for order in ["", ordered] {
            let body = format!(
                "setp.eq.u32 %p2, %r2, 1; @%p2 bra B; @%p1 st.SPACE.u32 [AT], 5; {order} @%p1 \
                 red.relaxed.gpu.SPACE.add.u32 [AT], 1; bra E; B: {order} @%p1 \
                 red.relaxed.gpu.SPACE.add.u32 [AT], 1; E:"
            );
            let body = body.replace("SPACE", space).replace("AT", at);
            check(64, &body, if order.is_empty() { races(space) } else { &[] });
        }
    }
}

/// The read-only path requires that no thread writes during the launch, before or after the read.
#[test]
fn memory_is_read_only_for_the_whole_launch() {
    let both = |first: &str, second: &str| format!("add.u64 I, I, o; {first} bar.sync 0; {second}");
    let (read, write) = ("ld.global.nc.u32 %r3, [I];", "st.global.u32 [I], t;");
    check(64, &both(read, write), &[Kind::ReadOnly]);
    check(64, &both(write, read), &[Kind::ReadOnly]);
    check(64, &both(read, "atom.global.add.u32 %r3, [I], 1;"), &[Kind::ReadOnly]);
    check(64, &both(read, "st.global.u8 [I+1], t;"), &[Kind::ReadOnly]);
    check(64, &both(read, read), &[]);
    check(64, &both(read, "st.global.u32 [O], t;"), &[]);
    check(64, &both("ld.global.u32 %r3, [I];", write), &[]);
}
