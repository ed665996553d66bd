//! Plants the predecessor's bugs, one at a time. Either the host must refuse the bug, or the simulator must
//! report it with its kind and source line. `tests/misuse` contains the bugs that do not compile.
//! docs/failures.md lists all of them.
use ferroflash::driver::Harness;
use ferroflash::driver::{Driver, SimDriver};
use ferroflash::kernels::{AttnInfo, Class, Contract, Isa, MaskKind, plain};
use ferroflash::lineage::{Configuration, names};
use ferroflash::plan::Problem;
use ferroflash::request::{AttentionRequest, Mask, TensorView};
use ferroflash::{Attention, Capabilities, DType, Error, plan, ptx};
use ferroflash_tests::{is_carried, run};
use ptx_sim::{Gpu, Kind, Launch, Module, Options, Profile};
use reference::{Case, Layout, Loaded, Reference, reproducer};
use std::path::Path;

/// The entry of a configuration that has a full mask.
fn entry(name: &str) -> &'static AttnInfo {
    let mut entries = Configuration::find(name).expect("in the lineage").entries().expect("possible");
    entries.find(|e| e.mask == MaskKind::Full).expect("compiled for full masks")
}

/// Runs the smallest problem that shows the bug on configuration `name`, with PTX that `plant` has changed.
/// Returns the reports of the simulator.
fn findings(name: &str, plant: impl Fn(&str) -> String) -> (Error, Vec<ptx_sim::Report>) {
    let (entry, attention) = (entry(name), Attention::new(SimDriver::new("l4").expect("a known card")));
    let text = ptx::source(entry.contract.symbol).expect("carried");
    let planted = plant(&text);
    assert_ne!(planted, text, "{name}: nothing was planted");
    // SAFETY: the simulator checks every access.
    unsafe { attention.load_from(entry.contract.symbol, &planted) }.expect("still PTX");
    let memory = reproducer(1)[0].memory();
    let outcome = Loaded::new(&attention, &memory, Some(entry.contract.symbol)).expect("loads").run();
    (
        outcome.map(|outcome| outcome.entry).expect_err("the first wait says it"),
        attention.driver().take_reports(),
    )
}

/// Checks that there is a report of one of `kinds` at a line of Rust, and that the error of the first wait
/// names the kernel.
#[track_caller]
fn reported(name: &str, kinds: &[Kind], plant: impl Fn(&str) -> String) {
    let (error, reports) = findings(name, plant);
    let found = reports.iter().find(|report| kinds.contains(&report.kind));
    let all = || reports.iter().map(|report| report.kind).collect::<Vec<_>>();
    let report = found.unwrap_or_else(|| panic!("{name}: found {:?}, expected {kinds:?}", all()));
    let line = report.second.place.source.first().unwrap_or_else(|| panic!("no source line in {report}"));
    assert!(line.file.ends_with(".rs") && line.line > 0, "{report}");
    assert!(
        matches!(&error, Error::Driver { .. }) && error.to_string().contains(entry(name).contract.symbol),
        "{error}"
    );
}

/// Removes a line from `text`. Among the lines that contain `words`, the removed line has index `n`.
fn without(text: &str, words: &str, n: usize) -> String {
    let mut seen = 0;
    let keep = |line: &&str| {
        seen += usize::from(line.contains(words));
        !line.contains(words) || seen != n + 1
    };
    text.split_inclusive('\n').filter(keep).collect()
}

const RACES: &[Kind] = &[Kind::ReadAfterWrite, Kind::WriteAfterRead, Kind::WriteAfterWrite];

// The bug of fa_s512: some runs failed with the error `misaligned address`.

#[test]
fn an_access_off_its_alignment_is_reported() {
    reported("fa_s512/64x64w4", &[Kind::Misaligned], |text| {
        let at = text.find("cp.async.cg.shared.global").expect("copies");
        let end = at + text[at..].find(", 16").expect("16 bytes");
        let (before, copy, after) = (&text[..at], &text[at..end], &text[end..]);
        format!("{before}{}{after}", copy.replacen("], [", "+8], [", 1))
    });
}

#[test]
fn a_misaligned_tensor_is_refused() {
    let view = |address| TensorView::bhsd(address, 1 << 20, DType::F16, [1, 64, 1, 64]);
    let [q, k, v, o] = [1, 2, 3, 4].map(|n| view(n << 30));
    let good = AttentionRequest::dense(q, k, v, o);
    let l4 = Capabilities::profile("l4").expect("a known card");
    plan(&good, l4).expect("aligned");
    let rows_apart = TensorView { strides: [4096, 68, 4096, 1], ..v };
    for (what, bad) in [
        ("k.address", AttentionRequest::dense(q, view((2 << 30) + 2), v, o)),
        ("v.strides", AttentionRequest::dense(q, k, rows_apart, o)),
    ] {
        let refused = plan(&bad, l4).map(|plan| plan.contract().symbol);
        assert!(
            matches!(refused, Err(Error::Invalid { what: named, .. }) if named == what),
            "{what}: {refused:?}"
        );
    }
}

#[test]
fn each_missing_barrier_is_reported() {
    for name in ["fa_s512/64x64w4", "fa_s512/128x32w8", "fa_s512/64x64w8"] {
        let kinds = [RACES, &[Kind::PendingCopy, Kind::UninitialisedShared]].concat();
        reported(name, &kinds, |text| without(text, "bar.sync", 0));
    }
}

#[test]
fn another_block_than_the_kernels_is_refused() {
    let driver = SimDriver::new("l4").expect("a known card");
    let entry = entry("fa_s512/64x64w4");
    let text = ptx::source(entry.contract.symbol).expect("carried");
    let contract = Contract::new(entry.contract.symbol, entry.contract.threads * 2);
    let stream = driver.stream().expect("a stream");
    let params = [0u8; size_of::<ferroflash::spec::FwdParams>()];
    let refused = driver.load(&text, &contract).and_then(|kernel| {
        // SAFETY: the driver refuses the launch before anything reads the parameters.
        unsafe { driver.launch(&kernel, [1; 3], &params, &stream) }
    });
    let message = refused.expect_err("the PTX says .reqntid").to_string();
    assert!(message.contains("256") && message.contains("128"), "{message}");
}

// The bug of fa_s512_v3: a tensor-core load from local memory, with 3389 errors of compute-sanitizer.

#[test]
fn a_tensor_core_load_from_local_memory_is_reported() {
    reported("v3/1", &[Kind::WrongSpace], |text| {
        let text = text.replacen(
            "\t.reg .pred",
            "\t.local .align 16 .b8 own[512];\n\t.reg .b64 %own<2>;\n\t.reg .pred",
            1,
        );
        let load = text.find("ldmatrix.sync.aligned.m8n8.x4.shared.b16").expect("loads");
        let line = text[..load].rfind('\n').expect("a line") + 1;
        let own = "\tmov.u64 %own0, own;\n\tcvta.local.u64 %own1, %own0;\n";
        let end = load + text[load..].find(';').expect("an end");
        let destination = text[load..end].find(", [").expect("an address");
        let generic = text[load..load + destination].replace("x4.shared.b16", "x4.b16");
        format!("{}{own}{}{generic}, [%own1]{}", &text[..line], &text[line..load], &text[end..])
    });
}

#[test]
fn a_fault_surfaces_at_its_own_launch_and_does_not_go_away() {
    let (error, reports) = findings("v3/4", |text| without(text, "cp.async.wait_group", 0));
    assert!(error.to_string().contains("and") && !reports.is_empty(), "{error}");
    assert!(reports.iter().all(|report| report.kernel == entry("v3/4").contract.symbol));
}

// The bugs of flashcore: wrong numbers, and a launch that failed without a report.

#[test]
fn wrong_numbers_fail_the_tolerance_rule() {
    // The scores are multiplied by 1 / 8.5 instead of 1 / 8. The error is smaller than the predecessor's
    // error, and 30 times the bound of the rule.
    let case = reproducer(1).swap_remove(0);
    let attention = Attention::new(SimDriver::new("l4").expect("a known card"));
    let reference = Reference::new(&case.memory().inputs().expect("valid"));
    let scaled = Case { scale: Some(1.0 / 8.5), ..case }.memory();
    let outcome = run(&attention, "flashcore/32x32", &scaled);
    let verdict = outcome.judge(&reference, DType::F16).expect("the same shape");
    assert!(!verdict.passed() && verdict.out.error < 0.34, "{:?}", verdict.out);
}

#[test]
fn shared_memory_without_the_opt_in_is_refused() {
    let is_large = |e: &&AttnInfo| e.contract.smem_bytes > 48 << 10 && is_carried(e.contract.symbol);
    let entry = plain(Isa::Sm80, Class::Dense).find(is_large).expect("one needs more than 48 KiB");
    let module = Module::parse(&ptx::source(entry.contract.symbol).expect("carried")).expect("PTX");
    let mut gpu = Gpu::new(Profile::by_name("h200").expect("a known card"), Options::default());
    let params = [0u8; size_of::<ferroflash::spec::FwdParams>()];
    let (block, dynamic_smem) = ([entry.contract.threads, 1, 1], entry.contract.smem_bytes);
    let launch = Launch { dynamic_smem, ..Launch::new([1; 3], block, &params) };
    let message =
        gpu.launch(&module, entry.contract.symbol, &launch).map(|_| ()).expect_err("no opt-in").to_string();
    assert!(message.contains(&entry.contract.smem_bytes.to_string()), "{message}");
}

#[test]
fn more_shared_memory_than_the_card_has_is_refused() {
    let l4 = Capabilities::profile("l4").expect("a known card");
    let is_larger =
        |e: &&AttnInfo| e.contract.smem_bytes > l4.smem_per_block && is_carried(e.contract.symbol);
    let entry = plain(Isa::Sm80, Class::Dense).find(is_larger).expect("one is too large");
    let driver = SimDriver::new("l4").expect("a known card");
    let refused =
        driver.load(&ptx::source(entry.contract.symbol).expect("carried"), &entry.contract).map(|_| ());
    let symbol = entry.contract.symbol;
    let names = matches!(&refused, Err(Error::Unsupported { feature, .. }) if feature.contains(symbol));
    assert!(names, "{refused:?}");
}

#[test]
fn a_missing_wait_for_a_copy_is_reported() {
    for name in ["flashcore/64x32-cpasync", "flashcore/64x32-persistent", "v3/4"] {
        let kinds = [RACES, &[Kind::PendingCopy]].concat();
        reported(name, &kinds, |text| without(text, "cp.async.wait_group", 0));
    }
}

#[test]
fn a_stage_that_nobody_filled_is_reported() {
    reported("flashcore/64x32-cpasync", &[Kind::UninitialisedShared], |text| {
        without(text, "cp.async.cg.shared.global", 0)
    });
}

/// The symbols of those `entries` that this build has, which must be at least one.
fn carried<'e>(entries: impl Iterator<Item = &'e AttnInfo>) -> impl Iterator<Item = &'static str> {
    let carried: Vec<_> = entries.map(|e| e.contract.symbol).filter(|symbol| is_carried(symbol)).collect();
    assert!(!carried.is_empty(), "a build carries one");
    carried.into_iter()
}

// In this bug, rows without a key computed -inf minus -inf.

#[test]
fn rows_with_no_key_give_zero_and_no_nan() {
    let attention = Attention::new(SimDriver::new("l4").expect("a known card"));
    let causal = plain(Isa::Sm80, Class::Dense)
        .filter(|entry| entry.mask == MaskKind::Causal && names(entry).next().is_some());
    for name in carried(causal) {
        // There are 100 queries and 30 keys. The last query has the position of the last key, so 70 queries
        // see no key.
        let problem = Problem::new(DType::F16, 1, 100, 2, 64).seqlen_k(30).mask(Mask::Causal);
        let memory = Case::tensors(problem, Layout::Bshd, 3).memory();
        let outcome = run(&attention, name, &memory);
        assert!(
            outcome.o()[..70 * 2 * 64].iter().all(|bits| bits & 0x7fff == 0),
            "{name}: rows with no key are 0"
        );
        let lse = outcome.lse();
        assert!(lse.chunks(100).all(|head| head[..70].iter().all(|x| *x == f32::NEG_INFINITY)), "{name}");
        assert!(lse.chunks(100).all(|head| head[70..].iter().all(|x| x.is_finite())), "{name}");
    }
}

/// 0 times infinity is NaN in products that the rows of a tile share. The infinite values that other rows see
/// must therefore not change a row that sees no key.
#[test]
fn rows_with_no_key_are_zero_beside_rows_that_see_infinity() {
    let causal = plain(Isa::Sm80, Class::Dense)
        .chain(plain(Isa::Sm90a, Class::Dense))
        .filter(|entry| entry.mask == MaskKind::Causal);
    for name in carried(causal.filter(|entry| entry.dtype == DType::F16 && names(entry).next().is_none())) {
        let attention = Attention::new(SimDriver::new("h200").expect("a known card"));
        let entry = ferroflash::kernels::entry(name).expect("in the table");
        let [head_dim, head_dim_v] = entry.columns().map(|columns| columns as usize);
        // There are 100 queries and 30 keys. The last query has the position of the last key, so 70 queries
        // see no key.
        let problem = Problem::new(DType::F16, 1, 100, 2, head_dim).head_dim_v(head_dim_v);
        let problem = problem.seqlen_k(30).mask(Mask::Causal);
        let mut memory = Case::tensors(problem, Layout::Bshd, 3).memory();
        memory.buffers[memory.v.buffer].fill(0x7c00);
        let outcome = run(&attention, name, &memory);
        let (unseen, seen) = outcome.o().split_at(70 * 2 * head_dim_v);
        assert!(unseen.iter().all(|bits| bits & 0x7fff == 0), "{name}: rows with no key are 0");
        assert!(seen.iter().all(|bits| bits & 0x7c00 == 0x7c00), "{name}: others see infinity");
    }
}

/// The kernel first takes a key whose score is far above all others. The value of this key is 0, so that an
/// error of the other keys' probabilities shows in the result.
#[test]
fn keys_far_below_the_largest_are_summed_as_they_should_be() {
    const KEYS: usize = 4096;
    let ones = [0x3c00, 0x3f80];
    let full = |entry: &&AttnInfo| (entry.mask, entry.head_dim) == (MaskKind::Full, 64);
    let portable = carried(plain(Isa::Sm80, Class::Dense).filter(full)).take(1);
    let all = carried(plain(Isa::Sm90a, Class::Dense).filter(full))
        .flat_map(|name| [15.4f32, 14.4, 13.0, 11.45].map(|p| (name, p)));
    for (name, powers) in all.chain(portable.map(|name| (name, 15.4))) {
        let attention = Attention::new(SimDriver::new("h200").expect("a known card"));
        let dtype = ferroflash::kernels::entry(name).expect("in the table").dtype;
        let problem = Problem::new(dtype, 1, 64, 1, 64).seqlen_k(KEYS);
        let mut memory = Case::tensors(problem, Layout::Bshd, 3).memory();
        // All scores are 0, except for the score of the last key. The value of the last key is 0, and all
        // other values are 1.
        let one = ones[(dtype == DType::Bf16) as usize];
        let (q, k, v) = (memory.q.buffer, memory.k.buffer, memory.v.buffer);
        memory.buffers[q].fill(0);
        memory.buffers[q].iter_mut().step_by(64).for_each(|x| *x = one);
        memory.buffers[k].fill(0);
        let last = (KEYS - 1) * 64;
        let score = powers * core::f32::consts::LN_2 * 8.0;
        memory.buffers[k][last] = match dtype {
            DType::F16 => half::f16::from_f32(score).to_bits(),
            _ => half::bf16::from_f32(score).to_bits(),
        };
        memory.buffers[v].fill(one);
        memory.buffers[v][last..last + 64].fill(0);
        let outcome = run(&attention, name, &memory);
        let far = (KEYS - 1) as f32 / powers.exp2();
        let o = match dtype {
            DType::F16 => half::f16::from_bits(outcome.o()[0]).to_f32(),
            _ => half::bf16::from_bits(outcome.o()[0]).to_f32(),
        };
        let expected = far / (1.0 + far);
        // The largest score is also rounded. The rounding changes it by up to 2^-11 of its value in f16, and
        // by up to 2^-8 in bf16.
        let allowed = if dtype == DType::F16 { 0.01 } else { 0.06 } * expected;
        assert!((o - expected).abs() <= allowed, "{name}, {powers}: {o}, not {expected}");
    }
}

/// Tests that docs/failures.md names only tests that exist, and names every compile-fail case.
#[test]
fn the_table_of_failures_names_what_holds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read =
        |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    let table = read("docs/failures.md");
    let tests = [
        "tests/tests/failures.rs",
        "tests/tests/lineage.rs",
        "tests/tests/fuzz.rs",
        "tests/tests/simulated.rs",
        "host/cli/tests/program/kernels.rs",
        "host/tests/launch.rs",
        "host/tests/tables.rs",
        "device/cuda_builder/tests/report.rs",
        "ptx-sim/tests/checkers.rs",
    ]
    .map(|path| (path, read(path)));
    let mut named = 0;
    for quoted in table.split('`').skip(1).step_by(2) {
        if let Some((file, test)) = quoted.split_once("::") {
            let found = tests.iter().any(|(path, text)| {
                path.ends_with(&format!("/{file}.rs")) && text.contains(&format!("fn {test}("))
            });
            assert!(found, "{quoted} is not there");
            named += 1;
        }
    }
    assert!(named >= 20, "only {named} tests are named");
    for case in std::fs::read_dir(root.join("tests/misuse/tests/compile_fail")).expect("a folder").flatten() {
        let name = case.file_name().to_string_lossy().into_owned();
        if let Some(case) = name.strip_suffix(".rs").filter(|name| *name != "correct") {
            assert!(table.contains(&format!("`{case}`")), "docs/failures.md should name {case}");
        }
    }
}
