//! Programmatic dependent launch: which accesses of a dependent launch wait for the launch before.
use common::{SHARED, module};
use ptx_sim::{Gpu, Kind, Launch, Options, Profile};

/// A kernel that lets dependent launches begin, and then writes `out`.
const BEFORE: &str = "griddepcontrol.launch_dependents; st.global.u32 [O], t;";
/// A read of `out`, and a use of what was read.
const READ: &str = "ld.global.u32 %r1, [O]; setp.eq.u32 %p1, %r1, 77; @%p1 trap;";

/// Runs kernels one after the other, each with whether it is dependent. Returns the findings of the last.
fn last(kernels: &[(&str, bool)]) -> Vec<Kind> {
    let mut gpu = Gpu::new(Profile::by_name("h200").unwrap(), Options::default());
    let [from, to] = ["in", "out"].map(|name| gpu.alloc(name, 1024, 256).unwrap());
    gpu.fill(from, 0, 1024).unwrap();
    gpu.fill(to, 0, 1024).unwrap();
    let params = [from, to].map(u64::to_le_bytes).concat();
    let launch = Launch {
        grid: [1; 3],
        block: [64, 1, 1],
        dynamic_smem: SHARED,
        smem_opt_in: 0,
        registers: None,
        params: &params,
    };
    let mut kinds = vec![];
    for (body, dependent) in kernels {
        let run = if *dependent { Gpu::launch_dependent } else { Gpu::launch };
        let outcome = run(&mut gpu, &module(body), "k", &launch).unwrap();
        kinds = outcome.reports.iter().map(|report| report.kind).collect();
    }
    kinds
}

/// Checks a dependent kernel behind [`BEFORE`].
fn check(body: &str, kinds: &[Kind]) {
    assert_eq!(last(&[(BEFORE, false), (body, true)]), kinds, "{body}");
    // The same kernel is correct in order.
    assert_eq!(last(&[(BEFORE, false), (body, false)]), [], "{body}");
}

#[test]
fn reads_behind_the_wait_are_correct_and_reads_before_it_are_not() {
    let early = Kind::DependentLaunch;
    check(&format!("griddepcontrol.wait; {READ}"), &[]);
    check(&format!("{READ} griddepcontrol.wait;"), &[early]);
    // Each lane waits by itself.
    check(
        &format!("setp.lt.u32 %p2, t, 32; @%p2 griddepcontrol.wait; {READ} griddepcontrol.wait;"),
        &[early],
    );
    let copy = |wait: [&str; 2]| {
        let [before, behind] = wait;
        format!("{before} cp.async.ca.shared.global [x], [O], 4; cp.async.wait_all; {behind}")
    };
    check(&copy(["griddepcontrol.wait;", ""]), &[]);
    check(&copy(["", "griddepcontrol.wait;"]), &[early]);
}

#[test]
fn what_no_launch_before_wrote_can_be_read_early() {
    check("ld.global.u32 %r1, [I]; griddepcontrol.wait;", &[]);
    check("ld.global.u32 %r1, [O+512]; griddepcontrol.wait;", &[]);
}

#[test]
fn writes_wait() {
    check("griddepcontrol.wait; st.global.u32 [O+512], t;", &[]);
    check("st.global.u32 [O+512], t; griddepcontrol.wait;", &[Kind::DependentLaunch]);
    check("red.global.add.u32 [O+512], 0; griddepcontrol.wait;", &[Kind::DependentLaunch]);
}

#[test]
fn every_thread_waits_before_it_ends() {
    check("", &[Kind::DependentLaunch]);
    check("setp.eq.u32 %p1, t, 5; @%p1 exit; griddepcontrol.wait;", &[Kind::DependentLaunch]);
}

#[test]
fn a_launch_waits_for_all_launches_since_the_last_one_in_order() {
    let (writes, waits) = ("griddepcontrol.wait; st.global.u32 [O+512], t;", "griddepcontrol.wait;");
    let reads = "ld.global.u32 %r1, [O]; griddepcontrol.wait;";
    // The launch before the last one may still run: a dependent launch stands between.
    assert_eq!(last(&[(BEFORE, false), (waits, true), (reads, true)]), [Kind::DependentLaunch]);
    assert_eq!(last(&[(BEFORE, false), (writes, true), (waits, false), (reads, true)]), []);
}
