//! Handwritten kernels with Hopper's instructions. `programs/hopper.txt` states which reports each kernel
//! must get, for every schedule.

use ptx_sim::{
    Completion, ElementType, Gpu, Launch, LaunchError, Module, Options, Outcome, Profile, Swizzle, TensorMap,
};

/// Number of bytes of each of the two buffers.
const BYTES: usize = 16384;

struct Program<'t> {
    name: &'t str,
    threads: u32,
    verdict: &'t str,
    body: &'t str,
}

fn programs() -> Vec<Program<'static>> {
    let parts = include_str!("programs/hopper.txt").split("\n//// ").skip(1);
    let program = |part: &'static str| {
        let (title, body) = part.split_once('\n').expect("a title and a body");
        let mut words = title.splitn(3, ' ');
        let mut next = || words.next().expect("a name, a number of threads, a verdict");
        let (name, threads, verdict) = (next(), next(), next());
        Program { name, threads: threads.parse().expect("a number"), verdict, body }
    };
    parts.map(program).collect()
}

fn launch(program: &Program<'_>, seed: u64, completion: Completion) -> Result<Outcome, LaunchError> {
    let Program { name, threads, body, .. } = program;
    let text = format!(
        ".version 8.3\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 smem[];
        .visible .entry k(.param .align 64 .b8 map[128], .param .u64 a, .param .u64 b)
        .reqntid {threads}, 1, 1
        {{ .reg .pred %p<9>; .reg .b32 %r<40>; .reg .b64 %rd<20>; .reg .f32 %f<64>;
        ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];
        {{ .reg .b64 t; mov.b64 t, map; cvta.param.u64 %rd3, t; }}
        mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; mov.u32 %r3, smem; mov.u32 %r9, 0;
        add.u32 %r4, %r3, 32768; add.u32 %r5, %r3, 32776;
        setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r1, 32;
        {body}
        ret; }}"
    );
    let module = Module::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    let options = Options { seed, completion, patience: 1 << 16, budget: 1 << 23, ..Options::default() };
    let mut gpu = Gpu::new(Profile::by_name("h200").unwrap(), options);
    let [a, b] = ["a", "b"].map(|name| gpu.alloc(name, BYTES, 1024).unwrap());
    gpu.fill(a, 0x3c, BYTES).unwrap();
    gpu.fill(b, 0x11, BYTES).unwrap();
    let map = TensorMap {
        element: ElementType::F16,
        address: a,
        dims: &[64, 128],
        strides: &[128],
        box_dims: &[64, 64],
        element_strides: &[1; 2],
        swizzle: Swizzle::B128,
        fill_nan: false,
    };
    let map = map.encode().unwrap();
    let params = map.iter().chain(&[a, b]).flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let launch =
        Launch { dynamic_smem: 65536, smem_opt_in: 65536, ..Launch::new([1; 3], [*threads, 1, 1], &params) };
    gpu.launch(&module, "k", &launch)
}

#[test]
fn each_program_earns_its_verdict() {
    let mut names = std::collections::HashSet::new();
    for program in programs() {
        let Program { name, verdict, .. } = program;
        assert!(names.insert(name), "{name} stands there twice");
        for seed in 0..4 {
            for completion in [Completion::Late, Completion::Eager, Completion::Random] {
                let found = launch(&program, seed, completion);
                let case = format!("{name}, seed {seed}, {completion:?}");
                match (verdict.strip_prefix("refused "), found) {
                    (Some(reason), Err(error)) => {
                        assert!(error.to_string().contains(reason), "{case}: {error}");
                    }
                    (Some(_), Ok(_)) => panic!("{case}: not refused"),
                    (None, Err(error)) => panic!("{case}: {error}"),
                    (None, Ok(outcome)) => {
                        let kinds: Vec<_> = outcome.reports.iter().map(|report| report.kind.name()).collect();
                        let right = match verdict {
                            "clean" => kinds.is_empty(),
                            verdict => kinds.iter().any(|kind| verdict.split(' ').any(|it| it == *kind)),
                        };
                        assert!(right, "{case}: {:#?}, expected {verdict}", outcome.reports);
                    }
                }
            }
        }
    }
}

/// The report about a copy that no thread waits for names the line of the copy and the line of its mbarrier.
#[test]
fn a_load_that_nobody_waits_for_names_both_lines() {
    let program = programs().into_iter().find(|program| program.name == "load_not_waited").unwrap();
    let outcome = launch(&program, 0, Completion::Late).unwrap();
    let [report] = outcome.reports.as_slice() else { panic!("{:#?}", outcome.reports) };
    assert!(report.second.place.instruction.contains("cp.async.bulk.tensor.2d"), "{report}");
    let first = report.first.as_ref().expect("the mbarrier's line");
    assert!(first.place.instruction.contains("mbarrier.init"), "{report}");
    assert!(first.place.ptx_line < report.second.place.ptx_line, "{report}");
}

/// Reductions add the contributions of several copies.
#[test]
fn reductions_combine() {
    for (op, ty, old, new, expected) in [
        ("add", "u32", 7u32, 5, 12),
        ("add", "f32", 1.5f32.to_bits(), 2.25f32.to_bits(), 3.75f32.to_bits()),
        ("add.noftz", "f16", 0x3c00_4000, 0x3c00_3c00, 0x4000_4200),
        ("min", "s32", 5, -3i32 as u32, -3i32 as u32),
        ("max", "u32", 5, -3i32 as u32, -3i32 as u32),
        ("min", "bf16", 0x3f80_c000, 0x4000_3f80, 0x3f80_c000),
        ("max", "f16", 0x3c00_c000, 0x4000_3c00, 0x4000_3c00),
        ("inc", "u32", 9, 9, 0),
        ("dec", "u32", 0, 9, 9),
        ("and", "b32", 12, 10, 8),
        ("xor", "b32", 12, 10, 6),
    ] {
        let body = format!(
            "mov.u32 %r8, {new}; shl.b32 %r10, %r1, 4; add.u32 %r10, %r10, %r3;
            st.shared.v4.b32 [%r10], {{%r8, %r8, %r8, %r8}}; mov.u32 %r7, {old};
            cvt.u64.u32 %rd4, %r10; shl.b32 %r11, %r1, 4; cvt.u64.u32 %rd4, %r11; add.u64 %rd4, %rd4, %rd2;
            st.global.v4.b32 [%rd4], {{%r7, %r7, %r7, %r7}};
            fence.proxy.async; bar.sync 0;
            @%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}.{ty} [%rd2], [%r3], 1024;
            @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0; bar.sync 0;
            ld.global.b32 %r12, [%rd4]; setp.ne.u32 %p5, %r12, {expected}; @%p5 trap;"
        );
        let program = Program { name: op, threads: 64, verdict: "clean", body: &body };
        let outcome = launch(&program, 0, Completion::Late).unwrap();
        assert!(outcome.reports.is_empty(), "{op}.{ty}: {}", outcome.reports[0]);
    }
}
