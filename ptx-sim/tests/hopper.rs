//! Tests of features that newer devices have: the text parses, and a module must declare the target that has
//! them.

use ptx_sim::{Gpu, Launch, LaunchError, Module, Options, Profile};

/// Instructions of `sm_90` and `sm_90a`, with the `.target` and `.version` that each of them needs.
const HOPPER: [(&str, &str, &str); 50] = [
    ("mbarrier.init.shared::cta.b64 [s], 1;", "sm_80", "7.8"),
    ("mbarrier.inval.shared::cta.b64 [s];", "sm_80", "7.8"),
    ("mbarrier.arrive.shared::cta.b64 _, [s];", "sm_80", "7.8"),
    ("mbarrier.arrive.shared.b64 w, [s], 2;", "sm_90", "7.8"),
    ("mbarrier.arrive.expect_tx.shared::cta.b64 _, [s], 16;", "sm_90", "8.0"),
    ("mbarrier.try_wait.parity.shared::cta.b64 p, [s], 0;", "sm_90", "7.8"),
    ("mbarrier.test_wait.parity.shared::cta.b64 p, [s], 0;", "sm_80", "7.8"),
    ("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [s], 16;", "sm_90", "8.0"),
    ("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [s];", "sm_80", "7.8"),
    ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [g], 16, [s];", "sm_90", "8.0"),
    (
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [s], [w, {t, t}], [s];",
        "sm_90",
        "8.0",
    ),
    (
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [s], [w, {t, t, t}], \
         [s];",
        "sm_90",
        "8.0",
    ),
    (
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [s], [w, {t, t, t, \
         t}], [s];",
        "sm_90",
        "8.0",
    ),
    (
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [s], [w, {t, t, t, t, \
         t}], [s];",
        "sm_90",
        "8.0",
    ),
    (
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster \
         [s], [w, {t, t}], [s], h;",
        "sm_90",
        "8.0",
    ),
    ("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [w, {t, t}], [s];", "sm_90", "8.0"),
    ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [g], [s], 16;", "sm_90", "8.0"),
    ("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [w, {t, t}], [s];", "sm_90", "8.0"),
    ("cp.async.bulk.commit_group;", "sm_90", "8.0"),
    ("cp.async.bulk.wait_group 0;", "sm_90", "8.0"),
    ("cp.async.bulk.wait_group.read 0;", "sm_90", "8.0"),
    ("prefetch.tensormap [w];", "sm_90", "8.0"),
    ("fence.proxy.async.shared::cta;", "sm_90", "8.0"),
    ("fence.mbarrier_init.release.cluster;", "sm_90", "8.0"),
    ("wgmma.fence.sync.aligned;", "sm_90a", "8.0"),
    ("wgmma.commit_group.sync.aligned;", "sm_90a", "8.0"),
    ("wgmma.wait_group.sync.aligned 0;", "sm_90a", "8.0"),
    // A is in shared memory, where A and B can be transposed; then A is in registers. The scale of D is a
    // predicate or a constant.
    (
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {f0, f1, f2, f3}, w, w, p, 1, 1, 0, 0;",
        "sm_90a",
        "8.0",
    ),
    (
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {f0, f1, f2, f3}, w, w, 1, 1, -1, 0, 1;",
        "sm_90a",
        "8.0",
    ),
    (
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {f0, f1, f2, f3}, {t, t, t, t}, w, p, 1, 1, 0;",
        "sm_90a",
        "8.0",
    ),
    ("setmaxnreg.inc.sync.aligned.u32 240;", "sm_90a", "8.0"),
    ("setmaxnreg.dec.sync.aligned.u32 24;", "sm_90a", "8.0"),
    ("elect.sync _|p, -1;", "sm_90", "8.0"),
    ("griddepcontrol.wait;", "sm_90", "7.8"),
    ("griddepcontrol.launch_dependents;", "sm_90", "7.8"),
    ("bar.sync 1, 64;", "sm_70", "6.0"),
    ("mapa.shared::cluster.u32 t, s, t;", "sm_90", "7.8"),
    ("barrier.cluster.arrive;", "sm_90", "7.8"),
    ("barrier.cluster.wait.aligned;", "sm_90", "7.8"),
    ("mov.u32 t, %cluster_ctarank;", "sm_90", "7.8"),
    ("stmatrix.sync.aligned.m8n8.x1.shared.b16 [s], {t};", "sm_90", "7.8"),
    ("red.global.add.v2.f32 [g], {f0, f1};", "sm_90", "8.1"),
    ("ld.acquire.cluster.global.b32 t, [g];", "sm_90", "7.8"),
    ("add.rn.bf16x2 t, t, t;", "sm_90", "7.8"),
    ("cvt.rn.bf16.u32 h, t;", "sm_90", "7.8"),
    ("cvt.f32.bf16 f0, h;", "sm_80", "7.1"),
    ("cvt.rn.satfinite.e4m3x2.f32 h, f0, f1;", "sm_89", "8.1"),
    ("cvt.rn.f16x2.e4m3x2 t, h;", "sm_89", "8.1"),
    ("cp.async.cg.shared.global [s], [g], 16;", "sm_80", "7.0"),
    (
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {f0, f1, f2, f3}, {t, t, t, t}, {t, t}, {f0, f1, \
         f2, f3};",
        "sm_80",
        "7.0",
    ),
];

/// The instructions in [`HOPPER`] that the simulator does not execute.
const REFUSED: [&str; 2] = ["multicast", "mapa"];

fn is_refused(instruction: &str) -> bool {
    REFUSED.iter().any(|word| instruction.contains(word))
}

fn module(instruction: &str, target: &str, version: &str) -> String {
    format!(
        ".version {version}\n.target {target}\n.address_size 64\n.extern .shared .align 1024 .b8 s[];
        .visible .entry k() {{ ret; }}
        .visible .entry user()
        {{ .reg .b64 g, w; .reg .b32 t; .reg .f32 f<4>;\n.reg .b16 h; .reg .pred p; ret;\n{instruction}
        ret; }}"
    )
}

/// The result of launching `entry`. No thread reaches the instruction in `user`, and the entry `k` does not
/// contain it.
fn load(entry: &str, instruction: &str, target: &str, version: &str) -> Result<(), LaunchError> {
    let module =
        Module::parse(&module(instruction, target, version)).unwrap_or_else(|e| panic!("{instruction}: {e}"));
    let mut gpu = Gpu::new(Profile::by_name("h200").unwrap(), Options::default());
    let launch = Launch::new([1; 3], [32, 1, 1], &[]);
    gpu.launch(&module, entry, &launch).map(|_| ())
}

#[test]
fn hopper_parses_and_nothing_of_it_is_lost() {
    for (instruction, ..) in HOPPER {
        let module = Module::parse(&module(instruction, "sm_90a", "8.3"))
            .unwrap_or_else(|e| panic!("{instruction}: {e}"));
        // The simulator refuses an instruction that it does not execute. Its error names the line and the
        // full text.
        let unsupported = module.unsupported("user");
        for unsupported in &unsupported {
            assert_eq!((unsupported.line, &*unsupported.instruction), (9, instruction));
        }
        assert_eq!(!unsupported.is_empty(), is_refused(instruction), "{instruction}");
    }
}

#[test]
fn a_module_has_the_instructions_of_its_target_and_version() {
    let older = |target: &str| match target {
        "sm_90a" => Some("sm_90"),
        "sm_90" => Some("sm_89"),
        "sm_80" => Some("sm_75"),
        _ => None,
    };
    for (instruction, target, version) in HOPPER {
        match load("user", instruction, target, version) {
            Err(LaunchError::Unsupported { line, .. }) => {
                assert_eq!((line, is_refused(instruction)), (9, true))
            }
            launched => assert_eq!((launched, is_refused(instruction)), (Ok(()), false), "{instruction}"),
        }
        if let Some(older) = older(target) {
            assert_eq!(load("k", instruction, older, "8.3"), Ok(()), "{instruction}: another entry's");
            let error = load("user", instruction, older, "8.3").unwrap_err().to_string();
            let later = if target == "sm_90a" { "" } else { " or later" };
            let words = format!(
                "ptx line 9: `{instruction}` needs `.target {target}`{later}, but the module declares \
                 `.target {older}`"
            );
            assert_eq!(error, words);
            let before = format!("{:.1}", version.parse::<f64>().unwrap() - 0.1).replace("7.9", "7.8");
            let error = load("user", instruction, target, &before).unwrap_err().to_string();
            assert!(error.contains(&format!("needs `.version {version}` or later")), "{instruction} {error}");
        }
    }
    assert!(matches!(load("user", "bar.sync 0;", "sm_l4", "8.0"), Err(LaunchError::Target { .. })));
}
