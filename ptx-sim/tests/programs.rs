//! Runs PTX from other compilers, and rare forms of PTX, and compares with the expected result of each
//! program in `programs/`.

use std::{fs, path::Path};

use ptx_sim::{Gpu, Module, Options, Profile, script::Script};

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name);
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Runs `script` on the module in `ptx`. Returns the text of the refusal or of the report, and the text that
/// the kernel printed.
fn outcome(ptx: &str, script: &str) -> (String, String) {
    let module = match Module::parse(&read(ptx)) {
        Ok(module) => module,
        Err(error) => return (format!("does not load: {error}"), String::new()),
    };
    let mut gpu = Gpu::new(Profile::by_name("h200").unwrap(), Options::default());
    match Script::parse(script).unwrap_or_else(|error| panic!("{ptx}: {error}")).run(&mut gpu, &module) {
        Ok(runs) => {
            let reports = runs.iter().flat_map(|run| &run.outcome.reports).map(ToString::to_string);
            let printed = runs.iter().map(|run| run.outcome.output.as_str()).collect();
            (reports.collect::<Vec<_>>().join("\n"), printed)
        }
        Err(error) => (error.to_string(), String::new()),
    }
}

/// The columns: a module, a script, and texts that the refusal or report must contain (none if there must be
/// neither).
type Case = (&'static str, &'static str, &'static [&'static str]);

fn check(cases: &[Case]) {
    for (ptx, script, verdict) in cases {
        let (found, _) = outcome(ptx, script);
        let clean = verdict.is_empty();
        let said = verdict.iter().all(|part| found.contains(part));
        assert!(said && (found.is_empty() || !clean), "{ptx}, {script}: `{found}`, expected {verdict:?}");
    }
}

#[test]
fn what_clang_writes() {
    let tables = ["strs", "virt"];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/clang");
    let mut scripts: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    scripts.retain(|path| path.extension().is_some_and(|kind| kind == "txt"));
    assert_eq!(scripts.len(), 30);
    for path in scripts {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let module = if tables.contains(&name.as_str()) { "tables" } else { "kernels" };
        let (found, _) = outcome(&format!("clang/{module}.ptx"), &read(&format!("clang/{name}.txt")));
        assert_eq!(found, "", "{name}");
    }
}

#[test]
fn what_a_kernel_prints() {
    let (found, printed) = outcome("clang/kernels.ptx", &read("clang/pr.txt"));
    assert_eq!(found, "");
    assert_eq!(printed, "t 0 0.000000 str 100%\nt 1 1.500000 str 100%\nt 2 3.000000 str 100%\n");
}

#[test]
fn what_rustc_writes() {
    check(&[
        ("rust/slices.ptx", &read("rust/idx.txt").leak()[..], &[]),
        (
            "rust/slices.ptx",
            "buffer x u32 32 = iota\nbuffer o u32 32\nrun idx block 40 args x u64:32 o",
            &[
                "panicked at rs/k.rs:6:198: index out of bounds: the len is 32 but the index is 32",
                "call.uni",
            ],
        ),
        (
            "rust/slices.ptx",
            "buffer x u64 4 = 1 2 3 4\nbuffer o u64 8\nrun u128k block 4 args x o\nexpect o = 1 1 4 2 9 3 \
             16 4",
            &[],
        ),
    ]);
}

#[test]
fn forms_that_ptx_allows() {
    check(&[
        ("forms/addc.ptx", "buffer o u32 1\nrun k block 1 args o\nexpect o = 8", &[]),
        ("forms/cvtw.ptx", "buffer o s32 5\nrun k block 1 args o\nexpect o = -62 -62 194 -62 -32767", &[]),
        ("forms/c.ptx", "buffer o s32 1\nrun k block 1 args o\nexpect o = -5", &[]),
        ("forms/rcp64.ptx", "buffer o f64 1\nrun k block 1 args o\nexpect o = 0.3333333 within 1e-6", &[]),
        (
            "forms/bfs.ptx",
            "buffer a u8 4 = zero\nbuffer b u8 4 = 1 0 1 0\nbuffer c u8 4 = zero\nbuffer d u8 1 = 0\nrun k2 \
             block 8 args a b c d s32:4\nexpect a = 1 0 1 0\nexpect b = 0 0 0 0\nexpect c = 1 0 1 \
             0\nexpect d = 1",
            &[],
        ),
        ("forms/initialisers.ptx", "buffer o s32 4\nrun k block 1 args o\nexpect o = -5 7 2 7", &[]),
        ("forms/registers.ptx", "buffer o u32 4\nrun calls block 4 args o\nexpect o = 42 44 46 48", &[]),
        ("forms/registers.ptx", "buffer o u32 6\nrun pointers block 6 args o\nexpect o = 1 2 3 6 5 10", &[]),
        (
            "forms/registers.ptx",
            "buffer o u32 1\nrun nowhere block 1 args o",
            &["a call through a pointer that is not the address of a function"],
        ),
        (
            "forms/registers.ptx",
            "buffer o f32 2 = 1.5 2\nrun vectors block 1,3 args o\nexpect o = 3.5 3",
            &[],
        ),
    ]);
}

#[test]
fn what_is_not_simulated_is_refused_by_line_where_it_is_launched() {
    let run = "buffer o f32 64 = zero\nrun k block 32 args o";
    check(&[
        ("forms/texref.ptx", run, &["line 4", "tex.2d", "textures and surfaces are not simulated"]),
        ("forms/texobj.ptx", "buffer o f32 1\nrun k args o u64:0", &["line 4", "textures and surfaces"]),
        ("forms/tf32.ptx", run, &["line 4", "mma.sync.aligned.m16n8k8.row.col.f32.tf32", "of f16, bf16"]),
        ("forms/wmma.ptx", run, &["line 4", "wmma.load.a", "only `mma.sync` and `wgmma`"]),
        ("forms/others.ptx", "buffer o u32 1\nrun fine block 1 args o\nexpect o = 7", &[]),
        ("forms/others.ptx", "run cluster args u64:0", &["line 8", "asks for clusters of blocks"]),
        ("forms/others.ptx", "run newer args u64:0", &["line 9", "needs `.target sm_90` or later"]),
        ("forms/others.ptx", "run address args u64:0", &["line 10", "`image` is a texture, a sampler"]),
        ("forms/others.ptx", "run nothing args u64:0", &["line 11", "no variable or function `nowhere`"]),
        ("forms/redasync.ptx", run, &["red.async", "needs `.version 8.1` or later"]),
    ]);
}
