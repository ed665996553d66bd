//! Kernels in `filetests/`, each with its launches, results and expected reports in its comments.

use std::{fs, path::Path};

use ptx_sim::{Completion, Gpu, Module, Options, Profile, script::Script};

#[test]
fn files_do_what_they_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("filetests");
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
        ("buffer x q7 4", "`q7` is no element type; there are u8 to u64, "),
        ("\nbuffer x f32 4 = 1 2", "script line 2: 2 values for 4 elements"),
        ("run k args y", "neither BUFFER"),
        ("run k grid a", "grid a"),
        ("buffer x f32 1\nexpect x = 1", "must follow a `run`"),
        (
            "buffer x f32 1\nrun k args x\nexpct x = 1",
            "script line 3: `expct` is none of `buffer`, `run`, `expect`, `report`",
        ),
        ("buffer x f32 1\n\nbuffer x u32 2", "script line 3: there is a buffer `x` already"),
        ("buffer x u8 2 = 1 256", "script line 1: `256` is no u8"),
        ("buffer x s8 1 = -129", "`-129` is no s8"),
        ("buffer x u32 1 = -1", "`-1` is no u32"),
        ("buffer x f16 1 = 1e6", "`1e6` is no f16"),
        ("buffer x u8 300 = iota", "u8 cannot count to 300"),
        ("buffer x f32 2\nrun k args x+9", "script line 2: `x+9` is beyond the 8 bytes of `x`"),
        (
            "buffer x f32 2\nrun k args x+18446744073709551615",
            "script line 2: `x+18446744073709551615` is beyond",
        ),
        ("run k args u32:4294967296", "`u32:4294967296` is no TYPE:VALUE"),
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
            "script line 2: what a run with a `report` leaves",
        ),
        ("buffer x f32 1\nrun k\nexpect x = 1 within -1", "`within` takes"),
        ("buffer x f32 1\nrun k\nexpect y = 1", "no buffer `y`; there are [x]"),
        // In PTX, comments that hold a statement hold nothing else.
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
