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
                let mut gpu =
                    Gpu::new(Profile::by_name("l4").unwrap(), Options { seed, completion, ..Options::default() });
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
        ("buffer x q7 4", "no element type"),
        ("\nbuffer x f32 4 = 1 2", "script line 2: 2 values for 4 elements"),
        ("run k args y", "neither BUFFER"),
        ("run k grid a", "grid a"),
        ("buffer x f32 1\nexpect x = 1", "must follow a `run`"),
    ] {
        let error = Script::parse(text).unwrap_err().to_string();
        assert!(error.contains(wrong), "{text}: {error}");
    }
}

#[test]
fn prints_are_collected() {
    let text = include_str!("../filetests/print.ptx");
    let mut gpu = Gpu::new(Profile::by_name("a100").unwrap(), Options::default());
    let runs = Script::parse(text).unwrap().run(&mut gpu, &Module::parse(text).unwrap()).unwrap();
    assert_eq!(runs[0].outcome.output, "thread 0\nthread 1\nthread 2\nthread 3\n");
}
