//! Builds a small device crate for real, and holds its kernels against the rules. Needs the device compiler and ptxas: `cargo xtask setup`.
#![cfg(feature = "ptxas")]

use std::path::Path;

use cuda_builder::gate::{self, Rule};
use cuda_builder::module::without_lines;
use cuda_builder::report::{EntryReport, Reporter};
use cuda_builder::toolchain::workspace_root;
use cuda_builder::{Arch, Contract, CudaBuilder, DebugInfo, Error, Output};

fn builder() -> CudaBuilder {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/device");
    CudaBuilder::new(fixture).target_dir(Path::new(env!("CARGO_TARGET_TMPDIR")).join("device")).jobs(1)
}

/// `accumulate` may have 255 registers a thread under one contract, and 64 under the other.
fn roomy() -> Contract {
    Contract::new("accumulate", 128)
}

fn cramped() -> Contract {
    Contract::new("accumulate", 1024)
}

fn indexed() -> Contract {
    Contract::new("indexed", 32)
}

fn reports(output: &Output) -> Vec<(&Contract, EntryReport)> {
    let workspace = workspace_root(Path::new(env!("CARGO_MANIFEST_DIR")));
    let reporter = Reporter::new(&workspace, Path::new(env!("CARGO_TARGET_TMPDIR")).join("reports")).unwrap();
    let reports = reporter.report_all(&output.modules, &[Arch::Sm80, Arch::Sm89], || {}).unwrap();
    reports.into_iter().map(|(module, report)| (&module.contract, report)).collect()
}

fn breaches(output: &Output) -> Vec<(String, Rule)> {
    match gate::check(reports(output).iter().map(|(c, r)| (*c, r))) {
        Ok(()) => Vec::new(),
        Err(Error::Rules(broken)) => {
            broken.into_iter().map(|b| (format!("{} {}", b.entry, b.target), b.rule)).collect()
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_planted_spill_and_a_local_array_fail_the_build_and_nothing_else_does() {
    let output = builder().entry(roomy()).entry(indexed()).build().unwrap();
    assert_eq!(output.warnings, "");
    let names: Vec<_> = output.modules.iter().map(|m| m.contract.symbol.as_str()).collect();
    assert_eq!(names, ["accumulate", "indexed"]);
    assert!(output.modules[0].text.contains(".reqntid 128, 1, 1\n{"), "{}", output.modules[0].text);
    assert!(output.inputs.iter().any(|p| p.ends_with("fixtures/device/src/lib.rs")), "{:?}", output.inputs);
    assert!(output.inputs.iter().any(|p| p.ends_with("fixtures/device/Cargo.toml")), "{:?}", output.inputs);

    let broken = breaches(&output);
    assert!(broken.iter().all(|(who, _)| who.starts_with("indexed ")), "{broken:?}");
    for target in ["sm_80", "sm_89"] {
        assert!(broken.contains(&(format!("indexed {target}"), Rule::LocalDepot)), "{broken:?}");
    }

    let checked = builder().entry(roomy()).entry(indexed()).check_on([Arch::Sm80]).build();
    assert!(matches!(&checked, Err(Error::Rules(broken)) if !broken.is_empty()), "{checked:?}");

    // The same code where a thread has 64 registers.
    let output = builder().entry(cramped()).entry(indexed()).build().unwrap();
    let broken = breaches(&output);
    for target in ["sm_80", "sm_89"] {
        let spills = |(who, rule): &(String, Rule)| {
            *who == format!("accumulate {target}") && matches!(rule, Rule::SpillInLoop { stores: 1.., loads: 1.. })
        };
        assert!(broken.iter().any(spills), "{target}: {broken:?}");
    }
}

#[test]
fn line_information_changes_no_instruction() {
    let build = |debug| builder().entry(roomy()).entry(indexed()).debug(debug).build().unwrap();
    let (lines, none) = (build(DebugInfo::Lines), build(DebugInfo::None));
    for (with, without) in lines.modules.iter().zip(&none.modules) {
        assert!(with.text.contains("\t.loc\t1 "), "{}", with.text);
        let files: Vec<_> = with.text.lines().filter_map(|line| line.strip_prefix("\t.file\t")).collect();
        assert_eq!(files[0], "1 \"device/cuda_builder/tests/fixtures/device/src/lib.rs\"");
        assert_eq!(files.iter().filter(|file| file.contains("/lib.rs")).count(), 1, "one name a file: {files:?}");
        let calls = with.text.lines().filter(|line| line.starts_with("\t.loc\t") && line.contains(" // @"));
        assert!(calls.count() > 0, "`core` is inlined: {}", with.text);
        assert!(!with.text.contains("%bb."), "{}", with.text);
        assert!(!without.text.contains(".loc\t"), "{}", without.text);
        assert_eq!(without_lines(&with.text), without.text);
    }
}

#[test]
fn entries_and_contracts_must_match() {
    let missing = builder().entries([roomy(), indexed(), Contract::new("absent", 32)]).build();
    assert!(matches!(missing, Err(Error::MissingEntry { symbol }) if symbol == "absent"));
    let uncontracted = builder().entry(roomy()).build();
    assert!(matches!(uncontracted, Err(Error::UncontractedEntry { symbol }) if symbol == "indexed"));
    let twice = builder().entries([roomy(), cramped()]).build();
    assert!(matches!(twice, Err(Error::DuplicateContract { symbol }) if symbol == "accumulate"));
    let crowded = builder().entries([Contract::new("accumulate", 2048), indexed()]).build();
    assert!(matches!(crowded, Err(Error::Threads { threads: 2048, .. })));
    let unstamped = builder().build().unwrap();
    assert_eq!(unstamped.modules.len(), 2);
    assert!(!unstamped.modules[0].text.contains(".reqntid"));
}

#[test]
fn a_crate_that_does_not_compile_says_why() {
    let error = builder().features(["no-such-feature"]).build().unwrap_err();
    assert!(matches!(&error, Error::Compile { stderr, .. } if stderr.contains("no-such-feature")), "{error}");
}
