//! Builds the README's program, unchanged, in a folder outside of the repository, and runs it in the
//! simulator. The test needs the device compiler.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use cuda_builder::toolchain::{DeviceCompiler, RUSTC_VARIABLE, workspace_root};

const README: &str = include_str!("../README.md");

/// The crates that the README names. These crates are not published yet, so the list has their folders.
const CRATES: [(&str, &str); 5] = [
    ("ferroflash-contract", "device/contract"),
    ("ferroflash-cuda-builder", "device/cuda_builder"),
    ("ferroflash-cuda-std", "device/cuda_std"),
    ("ferroflash-cuda-std-macros", "device/cuda_std_macros"),
    ("ferroflash-ptx-sim", "ptx-sim"),
];

/// The README's blocks of code, by the file name in the line above each block.
fn files(markdown: &str) -> BTreeMap<&str, String> {
    let mut files = BTreeMap::new();
    let mut lines = markdown.lines().peekable();
    while let Some(line) = lines.next() {
        let name = line.strip_prefix('`').and_then(|line| line.strip_suffix("`:"));
        let (Some(name), Some(fence)) = (name, lines.peek()) else { continue };
        assert!(fence.starts_with("```"), "{name} has a block of code");
        lines.next();
        let text: String = lines.by_ref().take_while(|line| *line != "```").flat_map(|l| [l, "\n"]).collect();
        assert!(files.insert(name, text).is_none(), "{name} is there once");
    }
    files
}

/// Writes the files that the README shows into a folder outside of the repository, and returns the folder.
/// Each checkout has its own folder.
fn written(repository: &Path) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    repository.hash(&mut hasher);
    let folder = env::temp_dir().join(format!("ferroflash-readme-{:016x}", hasher.finish()));
    let mut files = files(README);
    let names = ["Cargo.toml", "build.rs", "examples/launch.rs", "kernels/Cargo.toml", "kernels/src/lib.rs"];
    let names = names.into_iter().chain(["src/lib.rs", "tests/simulator.rs"]);
    assert_eq!(files.keys().copied().collect::<Vec<_>>(), names.collect::<Vec<_>>());
    let patch: String = CRATES
        .iter()
        .map(|(name, path)| format!("{name} = {{ path = {:?} }}\n", repository.join(path)))
        .collect();
    files.entry("Cargo.toml").and_modify(|text| text.push_str(&format!("\n[patch.crates-io]\n{patch}")));
    // The lock file has the versions that exist on this machine, so that cargo fetches nothing.
    files.insert("Cargo.lock", fs::read_to_string(repository.join("Cargo.lock")).unwrap());
    for (name, text) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // A file that is up to date keeps its modification time, so that a second run builds nothing.
        if name == "Cargo.lock" || !fs::read_to_string(&path).is_ok_and(|old| old == text) {
            fs::write(&path, text).unwrap();
        }
    }
    folder
}

#[test]
fn the_readmes_program_builds_and_runs() {
    let repository = workspace_root(Path::new(env!("CARGO_MANIFEST_DIR")));
    let compiler = DeviceCompiler::locate(&repository).unwrap();
    let folder = written(&repository);
    // An empty archive replaces the driver's libcuda, which this test does not need.
    let libcuda = repository.join("host/libcuda");
    let tasks = [
        (&["test", "--test", "simulator"][..], None),
        (&["check", "--features", "cust", "--example", "launch"], Some(libcuda)),
    ];
    for (task, libcuda) in tasks {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(task).args(["--quiet", "--offline"]).current_dir(&folder).envs([
            (RUSTC_VARIABLE, compiler.rustc.clone()),
            ("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme")),
        ]);
        // This repository sets the environment variable for its own builds. On a reader's machine, it is not
        // set.
        cargo.env_remove("CUDA_LIBRARY_PATH");
        cargo.envs(libcuda.map(|folder| ("CUDA_LIBRARY_PATH", folder)));
        let output = cargo.output().unwrap();
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success(), "cargo {}: {}", task.join(" "), said.concat());
        assert!(!said.concat().contains("warning"), "{}", said.concat());
        assert!(task[0] == "check" || said[0].contains("3 passed"), "{}", said.concat());
    }
}
