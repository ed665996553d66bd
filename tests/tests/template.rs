//! Crates outside of the repository, as users have them: the program of docs/your-own-attention.md, and
//! copies of `examples/your-own-attention` and of `examples/attention-gym`. They compile their own kernels
//! and none of FerroFlash's, and verify them in the simulator. Needs the device compiler.
use cuda_builder::toolchain::{DeviceCompiler, RUSTC_VARIABLE, workspace_root};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{env, fs};

/// The files of an example that a user copies, except for the other files in `kernels/src`.
const FILES: [&str; 6] =
    ["Cargo.toml", "build.rs", "kernels/Cargo.toml", "kernels/src/lib.rs", "src/lib.rs", "tests/verify.rs"];

/// Most lines of the document's program, without comments.
const MOST: usize = 40;

fn repository() -> PathBuf {
    workspace_root(Path::new(env!("CARGO_MANIFEST_DIR")))
}

/// Fills the folder outside of the repository with these files. `here` in manifests becomes the repository's
/// path. Each checkout has one folder, which the tests use one after the other: for each folder, each of the
/// builder's compilers would compile `core` again, in half a minute.
fn outside(
    files: &BTreeMap<String, String>,
    here: impl Fn(&str) -> String,
) -> (PathBuf, MutexGuard<'static, ()>) {
    static USED: Mutex<()> = Mutex::new(());
    let used = USED.lock().unwrap_or_else(PoisonError::into_inner);
    let (repository, mut hasher) = (repository(), DefaultHasher::new());
    repository.hash(&mut hasher);
    let folder = env::temp_dir().join(format!("ferroflash-outside-{:016x}", hasher.finish()));
    if folder.exists() {
        fs::remove_dir_all(&folder).unwrap();
    }
    for (name, text) in files {
        let checkout = repository.display();
        let text = text.replace(&format!("\"{}", here(name)), &format!("\"{checkout}/"));
        assert!(!name.ends_with(".toml") || text.contains(&checkout.to_string()), "{name} has paths to set");
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
    }
    // The lock file has the versions that exist on this machine, so that cargo fetches nothing.
    fs::copy(repository.join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    (folder, used)
}

/// Runs cargo in a folder, and returns its output. No environment variable tells the build to leave kernels
/// out.
fn cargo(folder: &Path, arguments: &[&str]) -> String {
    let compiler = DeviceCompiler::locate(&repository()).unwrap();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("template");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments).args(["--quiet", "--offline"]).current_dir(folder);
    cargo.envs([(RUSTC_VARIABLE, compiler.rustc), ("CARGO_TARGET_DIR", target)]);
    // Nobody debugs these programs, and DWARF takes a third of a build's time.
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
    let output = cargo.env_remove("FERROFLASH_PTX_DIR").output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{}", said.concat());
    // A build that compiles FerroFlash's kernels says so in a warning.
    assert!(!said[1].contains("warning"), "{}", said[1]);
    said.concat()
}

/// The files of the document: a fenced text behind a line with the file's name.
fn files_of(document: &str) -> BTreeMap<String, String> {
    let (mut files, mut lines, mut name) = (BTreeMap::new(), document.lines(), None);
    while let Some(line) = lines.next() {
        match (line.strip_prefix('`').and_then(|line| line.strip_suffix("`:")), &name) {
            (Some(found), _) => name = Some(found.to_owned()),
            (None, Some(file)) if line.starts_with("```") => {
                let text: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
                files.insert(file.clone(), text.join("\n") + "\n");
                name = None;
            }
            _ => {}
        }
    }
    files
}

#[test]
fn the_documents_program_verifies_its_kernel() {
    let document = fs::read_to_string(repository().join("docs/your-own-attention.md")).unwrap();
    let files = files_of(&document);
    let names: Vec<_> = files.keys().map(String::as_str).collect();
    assert_eq!(names, ["Cargo.toml", "build.rs", "kernels/Cargo.toml", "kernels/src/lib.rs", "src/main.rs"]);
    let rust = files.iter().filter(|(name, _)| name.ends_with(".rs")).flat_map(|(_, text)| text.lines());
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
    let lines = rust.filter(is_code).count();
    assert!(lines <= MOST && document.contains(&format!("{lines} lines of Rust")), "{lines} lines");
    let up = |name: &str| "../".repeat(1 + usize::from(name.starts_with("kernels/"))) + "ferroflash/";
    let (folder, _used) = outside(&files, up);
    // With the features of the examples' tests, so that one library and one reference are compiled for all.
    let said = cargo(&folder, &["run", "--features", "ferroflash/training"]);
    let (right, _) = said.split_once("; worst").unwrap_or((&said, ""));
    assert!(right.contains("launches are right") && document.contains(right), "{said}");
}

/// Copies an example, and runs its tests.
fn run_example(folder: &str, kernels: &[&str], passed: usize) {
    let read =
        |name: &str| fs::read_to_string(repository().join("examples").join(folder).join(name)).unwrap();
    let sources = kernels.iter().map(|name| format!("kernels/src/{name}.rs"));
    let names = FILES.into_iter().map(str::to_owned).chain(sources);
    let files = names.map(|name| (name.clone(), read(&name))).collect();
    let up = |name: &str| "../".repeat(2 + usize::from(name.starts_with("kernels/")));
    let (folder, _used) = outside(&files, up);
    let said = cargo(&folder, &["test", "--workspace"]);
    assert!(said.contains(&format!("{passed} passed")), "{said}");
}

#[test]
fn the_template_runs_outside_of_the_repository() {
    run_example("your-own-attention", &["masks", "scores"], 9);
}

#[test]
fn the_masks_of_attention_gym_run_outside_of_the_repository() {
    run_example("attention-gym", &["masks", "video", "relu"], 10);
}
