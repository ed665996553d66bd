//! Makes small kernels from one line of PTX, with and without a planted bug.
#![allow(missing_docs, reason = "only tests call these functions")]

pub mod bulk;
pub mod hopper;

use ptx_sim::{Completion, Gpu, Kind, Launch, LaunchError, Module, Options, Outcome, Profile};

/// Number of bytes of dynamic shared memory in these tests.
pub const SHARED: u32 = 4096;

pub fn module(body: &str) -> Module {
    let text = format!(
        ".version 8.3\n.target sm_90\n.address_size 64\n.extern .shared .align 128 .b8 tile[];\n.visible \
         .entry k(.param .u64 in, .param .u64 out) {{\n.reg .b64 %rd<10>; .reg .b32 %r<20>; .reg .pred \
         %p<5>; .reg .b32 s, t, x; .reg .b64 I, O, o;\nld.param.u64 I, [in]; ld.param.u64 O, [out]; mov.u32 \
         t, %tid.x; mov.u32 s, tile;\nmul.wide.u32 o, t, 4; add.u64 O, O, o; shl.b32 x, t, 2; add.u32 x, x, \
         s;\n{body}\n ret; }}"
    );
    Module::parse(&text).unwrap_or_else(|error| panic!("{body}: {error}"))
}

pub fn launch(body: &str, grid: u32, threads: u32, options: Options) -> Result<Outcome, LaunchError> {
    launch_on(Profile::by_name("h200").unwrap(), body, grid, threads, options)
}

pub fn launch_on(
    profile: Profile,
    body: &str,
    grid: u32,
    threads: u32,
    options: Options,
) -> Result<Outcome, LaunchError> {
    let mut gpu = Gpu::new(profile, options);
    let from = gpu.alloc("in", 1024, 256).unwrap();
    gpu.fill(from, 0, 1024).unwrap();
    let to = gpu.alloc("out", 1024, 256).unwrap();
    let params = [from, to].map(u64::to_le_bytes).concat();
    let launch = Launch { dynamic_smem: SHARED, ..Launch::new([grid, 1, 1], [threads, 1, 1], &params) };
    gpu.launch(&module(body), "k", &launch)
}

/// Checks that every schedule finds `kind` in `body`, and nothing in `body` after `fix` was applied.
pub fn caught(kind: Kind, threads: u32, body: &str, fix: (&str, &str)) {
    // The order of the warps decides which access of a race is the second one.
    match kind {
        Kind::ReadAfterWrite | Kind::WriteAfterRead => {
            caught_as(&[Kind::ReadAfterWrite, Kind::WriteAfterRead], threads, body, fix)
        }
        kind => caught_as(&[kind], threads, body, fix),
    }
}

pub fn caught_as(expected: &[Kind], threads: u32, body: &str, fix: (&str, &str)) {
    assert!(body.contains(fix.0), "{body} does not contain {}", fix.0);
    for seed in 0..6 {
        for completion in [Completion::Late, Completion::Eager, Completion::Random] {
            let options = Options { seed, completion, ..Options::default() };
            let outcome =
                launch(body, 1, threads, options.clone()).unwrap_or_else(|error| panic!("{body}: {error}"));
            let kinds: Vec<_> = outcome.reports.iter().map(|report| report.kind).collect();
            let found = kinds.iter().any(|kind| expected.contains(kind));
            assert!(found, "{body}, seed {seed}, {completion:?}: found {kinds:?}");
            let good = body.replacen(fix.0, fix.1, 1);
            let outcome =
                launch(&good, 1, threads, options).unwrap_or_else(|error| panic!("{good}: {error}"));
            assert!(
                outcome.reports.is_empty(),
                "{good}, seed {seed}, {completion:?}: {}",
                outcome.reports[0]
            );
        }
    }
}

/// Each thread copies 16 bytes.
pub const COPY: &str = "shl.b32 x, t, 4; add.u32 x, x, s; mul.wide.u32 o, t, 16; add.u64 I, I, o; \
                        cp.async.cg.shared.global [x], [I], 16;";
