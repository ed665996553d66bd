//! Builds a small device crate, and checks whether its kernels keep the rules. The tests need the device
//! compiler and ptxas: `cargo xtask setup`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_builder::gate::{self, Rule};
use cuda_builder::lines;
use cuda_builder::report::{EntryReport, Reporter};
use cuda_builder::toolchain::workspace_root;
use cuda_builder::{Arch, Contract, CudaBuilder, DebugInfo, Error, Module, Output, Target};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn builder() -> CudaBuilder {
    CudaBuilder::new(fixture("device")).jobs(1)
}

/// With this contract, `accumulate` may use 255 registers per thread. With the contract of [`cramped`], it
/// may use 64.
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
    let reporter = Reporter::new(&workspace, scratch("reports")).unwrap();
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
    let names: Vec<_> = output.modules.iter().map(|m| m.contract.symbol).collect();
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

    // With this contract, the same code has 64 registers per thread.
    let output = builder().entry(cramped()).entry(indexed()).build().unwrap();
    let broken = breaches(&output);
    for target in ["sm_80", "sm_89"] {
        let spills = |(who, rule): &(String, Rule)| {
            *who == format!("accumulate {target}")
                && matches!(rule, Rule::SpillInLoop { stores: 1.., loads: 1.. })
        };
        assert!(broken.iter().any(spills), "{target}: {broken:?}");
    }
}

#[test]
fn line_information_changes_no_instruction() {
    let build = |debug| builder().entry(roomy()).entry(indexed()).debug(debug).build().unwrap();
    let (located, none) = (build(DebugInfo::Lines), build(DebugInfo::None));
    for (with, without) in located.modules.iter().zip(&none.modules) {
        assert!(with.text.contains("\t.loc\t1 "), "{}", with.text);
        let files: Vec<_> = with.text.lines().filter_map(|line| line.strip_prefix("\t.file\t")).collect();
        assert_eq!(files[0], "1 \"device/cuda_builder/tests/fixtures/device/src/lib.rs\"");
        assert_eq!(
            files.iter().filter(|file| file.contains("/lib.rs")).count(),
            1,
            "each file has one name: {files:?}"
        );
        let calls = with.text.lines().filter(|line| line.starts_with("\t.loc\t") && line.contains(" // @"));
        assert!(calls.count() > 0, "`core` is inlined: {}", with.text);
        assert!(!with.text.contains("%bb."), "{}", with.text);
        assert!(!without.text.contains(".loc\t"), "{}", without.text);
        let (code, sources) = lines::split(&with.text);
        assert_eq!(code, without.text);
        assert_eq!(lines::join(&code, &sources).unwrap(), with.text);
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

#[test]
fn one_build_serves_portable_entries_and_those_of_one_generation() {
    let portable = Contract::new("branch_f16", 32);
    let hopper = Contract::new("fence", 128).target(Target::Exactly(90));
    // Two compilers run at the same time, one for each target.
    let builder = CudaBuilder::new(fixture("std")).jobs(2);
    let builder = builder.features(["hopper"]);
    let both = builder.clone().entries([hopper, portable]).check_on(Arch::ALL);
    let output = both.build().unwrap();
    let made = output.modules.iter().map(|m| (m.contract.symbol, m.arch)).collect::<Vec<_>>();
    assert_eq!(made, [("fence", Arch::Sm90a), ("branch_f16", Arch::Sm80)]);
    for module in &output.modules {
        assert!(module.text.contains(&format!("\n.target {}\n", module.arch)), "{}", module.text);
    }
    let workspace = workspace_root(Path::new(env!("CARGO_MANIFEST_DIR")));
    let reports = Reporter::new(&workspace, scratch("reports")).unwrap();
    let reports = reports.report_all(&output.modules, &Arch::ALL, || {}).unwrap();
    let reported = reports.iter().map(|(_, r)| (r.entry.as_str(), r.target.as_str())).collect::<Vec<_>>();
    let plain = ["sm_80", "sm_86", "sm_89", "sm_90"].map(|target| ("branch_f16", target));
    assert_eq!(reported, [&[("fence", "sm_90a")], &plain[..]].concat());

    let newer = builder.entry(portable.target(Target::From(75))).build();
    assert!(matches!(newer, Err(Error::UnknownTarget { target: Target::From(75), .. })), "{newer:?}");
}

/// Copies the crate `device` to a folder, as a package with another name.
fn copy(folder: &str, name: &str) -> PathBuf {
    let source = scratch(folder);
    let _ = fs::remove_dir_all(&source);
    fs::create_dir_all(source.join("src")).unwrap();
    for file in ["Cargo.toml", "Cargo.lock", "src/lib.rs"] {
        let text = fs::read_to_string(fixture("device").join(file)).unwrap();
        fs::write(source.join(file), text.replace("fixture-device", name)).unwrap();
    }
    source
}

/// Replaces a text in a crate's source.
fn edit(source: &Path, from: &str, to: &str) {
    let lib = source.join("src/lib.rs");
    let text = fs::read_to_string(&lib).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(&lib, text.replace(from, to)).unwrap();
}

#[test]
fn crates_of_one_name_have_their_own_files() {
    let build = |(folder, constant): (&str, &str)| {
        let source = copy(folder, "fixture-of-one-name");
        edit(&source, "+ 1.0;", constant);
        let builder = CudaBuilder::new(&source).jobs(1);
        builder.entries([roomy(), indexed()]).build().unwrap().modules.remove(0)
    };
    let [one, other] = [("one-name-here", "+ 1.0;"), ("one-name-there", "+ 2.0;")].map(build);
    assert!(one.path != other.path, "{}", one.path.display());
    assert!(one.text != other.text, "{}", one.text);
    for module in [one, other] {
        assert_eq!(fs::read_to_string(module.path).unwrap(), module.text);
    }
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn what_was_built_before_is_not_compiled_again() {
    // No other test builds this package, so none of its modules is cached.
    let name = format!("fixture-kept-{}", std::process::id());
    let source = copy("kept-source", &name);
    let build = |contracts: &[Contract]| {
        let compiled = Arc::new(AtomicBool::new(false));
        let noted = compiled.clone();
        let builder = CudaBuilder::new(&source).jobs(1).entries(contracts.to_vec());
        let output = builder.progress(move |_, _| noted.store(true, Ordering::Relaxed)).build();
        let texts = output.unwrap().modules.into_iter().map(|m| m.text).collect::<Vec<_>>();
        (texts, compiled.load(Ordering::Relaxed))
    };
    let both = [roomy(), indexed()];
    let (first, compiled) = build(&both);
    assert!(compiled);
    assert_eq!(build(&both), (first.clone(), false));

    // A damaged module is made anew.
    let folder = workspace_root(&source).join("target/cuda-builder").join(&name);
    let cached = files(&folder.join("sm_80/cache"));
    let cached = cached.iter().find(|path| path.to_string_lossy().contains("accumulate")).unwrap();
    let damages: [fn(&str) -> String; 2] = [|text| text[..text.len() / 2].to_owned(), |_| String::new()];
    for damage in damages {
        fs::write(cached, damage(&fs::read_to_string(cached).unwrap())).unwrap();
        assert_eq!(build(&both), (first.clone(), true));
    }
    // Where nothing is missing, a build takes no lock: in this folder it could not.
    let lock = folder.join("lock");
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    assert_eq!(build(&both), (first.clone(), false));
    fs::remove_dir(&lock).unwrap();

    edit(&source, "+ 1.0;", "+ 2.0;");
    let (second, compiled) = build(&both);
    assert!(compiled && second != first);
    edit(&source, "+ 2.0;", "+ 1.0;");
    assert_eq!(build(&both), (first.clone(), false));

    let (other, compiled) = build(&[cramped(), indexed()]);
    assert!(compiled && other[0].contains(".reqntid 1024, 1, 1") && other[1] == first[1]);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn modules_that_share_a_run_of_the_tools_have_their_own_reports() {
    let workspace = workspace_root(Path::new(env!("CARGO_MANIFEST_DIR")));
    // Cached reports would need no run of the tools.
    let _ = fs::remove_dir_all(scratch("shared-reports"));
    let reporter = Reporter::new(&workspace, scratch("shared-reports")).unwrap();
    let module = |symbol: &'static str, body: &str| Module {
        contract: Contract::new(symbol, 32),
        arch: Arch::Sm80,
        text: format!(
            ".version 7.8\n.target sm_80\n.address_size 64\n.func helper() {{ {body} }}\n\
             .visible .entry {symbol}() {{ call helper; ret; }}\n"
        ),
        path: PathBuf::new(),
    };
    // Two of the helpers have one name and two meanings.
    let modules = [module("first", "ret;"), module("second", "ret;"), module("third", "bar.sync 0; ret;")];
    let reports = reporter.report_all(&modules, &[Arch::Sm89, Arch::Sm80], || {}).unwrap();
    let names: Vec<_> = reports.iter().map(|(_, r)| format!("{} {}", r.entry, r.target)).collect();
    let expected =
        ["first", "second", "third"].map(|name| [format!("{name} sm_89"), format!("{name} sm_80")]);
    assert_eq!(names, expected.concat());
    // A module that ptxas refuses is named.
    let refused = [module("fourth", "ret;"), module("fifth", "unknown;")];
    match reporter.report_all(&refused, &[Arch::Sm80], || {}) {
        Err(Error::Tool { subject, .. }) => assert_eq!(subject, "fifth for sm_80"),
        other => panic!("{other:?}"),
    }
}
