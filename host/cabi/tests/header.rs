//! Compiles a C program against the header, links it to the library, and runs it on a machine without a
//! driver.
#![cfg(target_os = "linux")]
#[path = "../../tests/fake_cuda/library.rs"]
mod library;

use ferroflash_c::{AppendArgs, Args, AttentionArgs, BackwardArgs, Field, MergeArgs, PlanInfo, StateArgs};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Strict compiler flags.
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// Returns the shared library that was built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    let library = test.with_file_name("libferroflash_c.so");
    assert!(library.is_file(), "{} is built with this test", library.display());
    library
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

/// Compiles `tests/header.c` with the system's compiler and returns the program.
fn compile(name: &str) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let library = library();
    let folder = library.parent().expect("it lies in a folder");
    let numbers = [("ATTENTION_LEAST", AttentionArgs::LEAST), ("PLAN_INFO_LEAST", PlanInfo::LEAST)];
    let mut rpath = OsString::from("-Wl,-rpath,");
    rpath.push(folder);
    let mut command = Command::new("cc");
    command.args(["-std=c11"]).args(WARNINGS).arg("-I");
    command.arg(package.join("include")).arg(package.join("tests/header.c")).arg("-o").arg(&program);
    command.args(numbers.map(|(name, number)| format!("-D{name}={number}")));
    command.arg(concat!("-DVERSION=\"", env!("CARGO_PKG_VERSION"), "\""));
    command.arg("-L").arg(folder).arg("-lferroflash_c").arg(rpath);
    let output = run(&mut command);
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    program
}

#[test]
fn a_c_program_gets_clean_errors() {
    let program = compile("header");
    // This folder has files with the driver's names that are no libraries. The loader finds these files
    // before any driver of this machine.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-driver");
    std::fs::create_dir_all(&folder).expect("a folder for the test");
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::fs::write(folder.join(name), "").expect("written");
    }
    let without_driver = |tuning: Option<&str>| {
        let mut command = Command::new(&program);
        // The program must not read a tuning file of this machine.
        command
            .env("LD_LIBRARY_PATH", &folder)
            .env("XDG_CACHE_HOME", &folder)
            .env_remove("FERROFLASH_TUNING");
        let output = run(command.envs(tuning.map(|tuning| ("FERROFLASH_TUNING", folder.join(tuning)))));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        text
    };
    let no_driver = "context: 3\nopen the CUDA driver: no CUDA driver: ";
    let text = without_driver(None);
    assert!(text.contains(no_driver), "{text}");
    std::fs::write(folder.join("tuning.json"), r#"{"devices": {}}"#).expect("written");
    let text = without_driver(Some("tuning.json"));
    assert!(text.contains(no_driver), "{text}");
    for (name, content) in [("missing.json", None), ("broken.json", Some("{\"devices\": 3}"))] {
        content.map_or(Ok(()), |content| std::fs::write(folder.join(name), content)).expect("written");
        let text = without_driver(Some(name));
        assert!(text.contains("context: 1\ninvalid tuning: ") && text.contains(name), "{text}");
    }
}

/// Runs the part of the program that needs a device, on the fake driver.
#[test]
fn a_c_program_plans_on_a_device() {
    let mut command = Command::new(compile("header-fake"));
    let nothing = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let command = command.env("LD_LIBRARY_PATH", library::folder()).env("XDG_CACHE_HOME", nothing);
    let output = run(command.env_remove("FERROFLASH_TUNING"));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.starts_with("context: 0\n"), "{text}");
}

/// A check of the C compiler that a struct has the library's size, and its fields the library's places.
fn layout<A: Args>() -> String {
    let c = format!("ferroflash_{}_t", A::NAME);
    let mut text = format!("_Static_assert(sizeof({c}) == {}, \"{c}\");\n", size_of::<A>());
    for Field { name, offset, bytes, .. } in A::FIELDS {
        let is = format!("offsetof({c}, {name}) == {offset} && sizeof((({c} *)0)->{name}) == {bytes}");
        text += &format!("_Static_assert({is}, \"{c}.{name}\");\n");
    }
    text
}

#[test]
fn the_compiler_lays_structs_out_like_the_library() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = [
        "#include \"ferroflash.h\"\n_Static_assert(sizeof(ferroflash_status_t) == 4, \"\");\n".to_owned(),
        layout::<AttentionArgs>(),
        layout::<PlanInfo>(),
        layout::<BackwardArgs>(),
        layout::<AppendArgs>(),
        layout::<StateArgs>(),
        layout::<MergeArgs>(),
    ];
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("layout.c");
    std::fs::write(&file, text.concat()).expect("written");
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-fsyntax-only", "-I"]).arg(package.join("include")).arg(&file);
    let output = run(&mut command);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_header_is_clean_in_every_standard() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let standards = ["c99", "c11", "c17", "c++11", "c++17", "c++20"];
    for standard in standards {
        let language = if standard.starts_with("c++") { "c++" } else { "c" };
        let mut command = Command::new("cc");
        command.args(["-fsyntax-only", "-x", language, &format!("-std={standard}")]).args(WARNINGS);
        command.arg("-I").arg(folder.join("include")).arg(folder.join("tests/clean.c"));
        let output = run(&mut command);
        assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The crate `libcuda` defines the driver's functions for `cust`. If the library exported these functions, a
/// library that is loaded later would use them instead of the driver's functions.
#[test]
fn only_functions_of_the_header_are_exported() {
    let output = run(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(library()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let names: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let header = include_str!("../include/ferroflash.h");
    let foreign: Vec<_> = names.iter().filter(|name| !header.contains(&format!("{name}("))).collect();
    assert!(foreign.is_empty() && names.len() >= 15, "{foreign:?} of {names:?}");
}

/// The texts of errors serve callers of every language: they name no path of the Rust library.
#[test]
fn errors_name_no_rust_path() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    let files = std::fs::read_dir(folder.join("validate"))
        .expect("a folder")
        .map(|file| file.expect("a file").path());
    let mut texts = 0;
    for file in files.chain([folder.join("validate.rs")]) {
        let source = std::fs::read_to_string(&file).expect("a file");
        let source = source.split("#[cfg(test)]").next().unwrap_or_default();
        let code: Vec<_> = source.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        for text in code.join("\n").split('"').skip(1).step_by(2) {
            texts += 1;
            assert!(!text.contains("::"), "{}: {text}", file.display());
        }
    }
    assert!(texts > 100, "{texts}");
}

#[test]
fn it_runs_with_what_this_machine_has() {
    let output = run(&mut Command::new(compile("header-here")));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
