//! Runs the kernels in `filetests/`. The comments of each file have its launches, results and expected
//! reports.

use std::{fs, path::Path};

use ptx_sim::{Completion, Gpu, Module, Options, Profile, script::Script};

#[test]
fn files_do_what_they_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../filetests");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 4);
    for path in files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).unwrap();
        let module = Module::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let script = Script::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        for seed in 0..4 {
            for completion in [Completion::Late, Completion::Eager, Completion::Random] {
                let mut gpu = Gpu::new(
                    Profile::by_name("l4").unwrap(),
                    Options { seed, completion, ..Options::default() },
                );
                let runs = script
                    .run(&mut gpu, &module)
                    .unwrap_or_else(|error| panic!("{name}, seed {seed}, {completion:?}: {error}"));
                assert!(!runs.is_empty(), "{name} runs nothing");
                for run in runs {
                    let reports: Vec<_> = run.outcome.reports.iter().map(ToString::to_string).collect();
                    assert!(
                        run.as_expected(),
                        "{name}, {}: expected {:?}, found {reports:#?}",
                        run.entry,
                        run.expected_reports
                    );
                }
            }
        }
    }
}

#[test]
fn wrong_scripts_name_their_line() {
    for (text, wrong) in [
        ("buffer x", "script line 1"),
        ("buffer x q7 4", "`q7` is not an element type; valid are u8 to u64, "),
        ("\nbuffer x f32 4 = 1 2", "script line 2: 2 values for 4 elements"),
        ("run k args y", "neither BUFFER"),
        ("run k grid a", "grid a"),
        ("buffer x f32 1\nexpect x = 1", "must follow a `run`"),
        (
            "buffer x f32 1\nrun k args x\nexpct x = 1",
            "script line 3: `expct` is none of `buffer`, `run`, `expect`, `report`",
        ),
        ("buffer x f32 1\n\nbuffer x u32 2", "script line 3: buffer `x` already exists"),
        ("buffer x u8 2 = 1 256", "script line 1: `256` is not a u8"),
        ("buffer x s8 1 = -129", "`-129` is not a s8"),
        ("buffer x u32 1 = -1", "`-1` is not a u32"),
        ("buffer x f16 1 = 1e6", "`1e6` is not a f16"),
        ("buffer x u8 300 = iota", "u8 cannot count to 300"),
        ("buffer x f32 2\nrun k args x+9", "script line 2: `x+9` is beyond the 8 bytes of `x`"),
        (
            "buffer x f32 2\nrun k args x+18446744073709551615",
            "script line 2: `x+18446744073709551615` is beyond",
        ),
        ("run k args u32:4294967296", "`u32:4294967296` is not TYPE:VALUE"),
        ("run k grid 1 grid 2", "`grid` is given twice"),
        ("run k registers many", "`registers many`"),
        ("report trap", "must follow a `run`"),
        ("run k\nreport", "script line 2: `report KIND [KIND ..]` must follow"),
        (
            "run k\nreport nonsense-kind",
            "script line 2: unknown variant `nonsense-kind`, expected one of `out-of-bounds`, ",
        ),
        ("run k\nreport trap\nreport trap", "script line 3: `report trap` is given twice"),
        (
            "buffer x f32 1\nrun k\nreport trap\nexpect x = 1",
            "script line 2: buffers have no defined value after a run with a `report`",
        ),
        ("buffer x f32 1\nrun k\nexpect x = 1 within -1", "`within` takes"),
        ("buffer x f32 1\nrun k\nexpect y = 1", "no buffer `y`; the script has [x]"),
        ("buffer x f32 1\nrun k\nexpect x = 1 within inf", "`within` takes"),
        ("buffer x f32 1\nrun k\nexpect x = 1 within nan", "`within` takes"),
        ("buffer x f32 0\nrun k\nexpect x = 1 ...", "script line 3: `x` is empty"),
        // In PTX, a paragraph of comments with a statement contains only statements.
        ("// run k\n// expct x = 5\n.version 7.8", "script line 2: `expct` is none"),
        ("// bufer x f32 1\n// run k\n.version 7.8", "script line 1: `bufer` is none"),
    ] {
        let error = Script::parse(text).unwrap_err().to_string();
        assert!(error.contains(wrong), "{text}: {error}");
    }
}

#[test]
fn prose_is_told_from_statements() {
    let gpu = || Gpu::new(Profile::by_name("l4").unwrap(), Options::default());
    let ptx = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k() { trap; }\n.visible \
               .entry l() { ret; }";
    let runs = |text: &str| {
        let module = Module::parse(ptx).unwrap();
        let runs = Script::parse(text)
            .unwrap_or_else(|error| panic!("{text}: {error}"))
            .run(&mut gpu(), &module)
            .unwrap();
        runs.iter().map(|run| run.as_expected()).collect::<Vec<_>>()
    };
    assert_eq!(runs("# two launches\n\nrun k\n  report trap\n# and\nrun l"), [true, true]);
    assert_eq!(
        runs("run k\nreport deadlock trap\nrun l\nreport trap\nrun k\nrun k\nreport deadlock"),
        [true, false, false, false]
    );
    assert_eq!(
        runs(&format!("// Traps, if told to.\n//\n// run k\n// report trap\n\n// Or not.\n{ptx}")),
        [true]
    );
}

#[test]
fn prints_are_collected() {
    let text = include_str!("../filetests/print.ptx");
    let mut gpu = Gpu::new(Profile::by_name("a100").unwrap(), Options::default());
    let runs = Script::parse(text).unwrap().run(&mut gpu, &Module::parse(text).unwrap()).unwrap();
    assert_eq!(runs[0].outcome.output, "thread 0\nthread 1\nthread 2\nthread 3\n");
}

/// The result of `expect` on a buffer that no kernel touches.
#[test]
fn values_are_compared_exactly() {
    let ptx = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }";
    let module = Module::parse(ptx).unwrap();
    for (buffer, expect, wrong) in [
        ("u64 1 = 9007199254740992", "9007199254740992", ""),
        (
            "u64 1 = 9007199254740993",
            "9007199254740992",
            "x[0] is 9007199254740993, expected 9007199254740992",
        ),
        ("u64 1 = 18446744073709551615", "18446744073709551614", "x[0] is 18446744073709551615"),
        ("u64 1 = 18446744073709551615", "18446744073709551614 within 1", ""),
        ("s64 1 = -9223372036854775808", "-9223372036854775807", "x[0] is -9223372036854775808"),
        ("s64 1 = -9223372036854775808", "9223372036854775807 within 1e18", "x[0] is -9223372036854775808"),
        ("f32 2 = 1 nan", "1 nan", ""),
        ("f32 1 = inf", "inf within 1", ""),
        ("f32 1 = inf", "1 within 1e30", "x[0] is inf, expected 1"),
        // The kernel touches only the start of this large buffer.
        ("f64 268435456 = iota", "0 1 2 3", ""),
        ("f64 268435456 = random 7", "2 ...", "x[0] is "),
        ("f32 268435456 = 3 4 ...", "3 4 3 5", "x[3] is 4, expected 5"),
    ] {
        let text = format!("buffer x {buffer}\nrun k\nexpect x = {expect}");
        let mut gpu = Gpu::new(Profile::by_name("l4").unwrap(), Options::default());
        let found = match Script::parse(&text).and_then(|script| script.run(&mut gpu, &module)) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        };
        assert!(found.contains(wrong) && found.is_empty() == wrong.is_empty(), "{text}: `{found}`");
    }
}

/// A buffer has the same content whether accesses begin at its start or in its middle.
#[test]
fn buffers_are_made_where_they_are_touched() {
    let ptx = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 x, .param \
               .u64 y) {\n.reg .b64 %rd<3>; .reg .b32 %r1;\nld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y];\n\
               ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd2], %r1; ret; }";
    let module = Module::parse(ptx).unwrap();
    for fill in ["random 3", "iota", "1 2 3 ..."] {
        let values = |at: usize| {
            let text = format!(
                "buffer x u32 5000 = {fill}\nbuffer y u32 1\nrun k args x+{} y\nexpect y = 4294967295",
                4 * at
            );
            let mut gpu = Gpu::new(Profile::by_name("l4").unwrap(), Options::default());
            Script::parse(&text).unwrap().run(&mut gpu, &module).unwrap_err().to_string()
        };
        // Some pages end between these elements.
        let numbers: Vec<_> = [0, 1, 959, 960, 1023, 1024, 4999].map(values).to_vec();
        let state = |steps: usize| {
            let next = |state: u64| {
                state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
            };
            let state = (0..=steps).fold(3, |state, _| next(state));
            (((state >> 40) as f64 / f64::from(1 << 23) - 1.0).abs() * 100.0) as usize
        };
        for (at, found) in [0, 1, 959, 960, 1023, 1024, 4999].into_iter().zip(numbers) {
            let expected = match fill {
                "iota" => at,
                "random 3" => state(at),
                _ => at % 3 + 1,
            };
            assert!(found.contains(&format!("y[0] is {expected},")), "{fill}, {at}: {found}");
        }
    }
}
