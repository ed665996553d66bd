//! Copies `examples/your-own-attention` to a folder outside of the repository, as a user would, and runs its
//! tests there. The tests run the kernels of the copied crate in the simulator. The test needs the device
//! compiler.
use cuda_builder::toolchain::{DeviceCompiler, RUSTC_VARIABLE, workspace_root};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const TEMPLATE: &str = "examples/your-own-attention";

/// The files that a user copies.
const FILES: [&str; 6] = [
    "Cargo.toml",
    "build.rs",
    "kernels/Cargo.toml",
    "kernels/src/lib.rs",
    "src/lib.rs",
    "tests/simulator.rs",
];

/// Copies the template to a folder outside of the repository, and returns the folder. Each checkout has its
/// own folder.
fn copied(repository: &Path) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    repository.hash(&mut hasher);
    let folder = env::temp_dir().join(format!("ferroflash-template-{:016x}", hasher.finish()));
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // A file that is up to date keeps its modification time, so that a second run builds nothing.
        if !fs::read_to_string(&path).is_ok_and(|old| old == text) {
            fs::write(&path, text).unwrap();
        }
    };
    for name in FILES {
        let text = fs::read_to_string(repository.join(TEMPLATE).join(name)).unwrap();
        let up = "../".repeat(2 + usize::from(name.starts_with("kernels/")));
        let checkout = repository.display();
        let text = text.replace(&format!("\"{up}"), &format!("\"{checkout}/"));
        assert!(!name.ends_with(".toml") || text.contains(&checkout.to_string()), "{name} has paths to set");
        write(name, text);
    }
    // The lock file has the versions that exist on this machine, so that cargo fetches nothing.
    fs::copy(repository.join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    folder
}

#[test]
fn the_template_runs_outside_of_the_repository() {
    let repository = workspace_root(Path::new(env!("CARGO_MANIFEST_DIR")));
    let compiler = DeviceCompiler::locate(&repository).unwrap();
    let folder = copied(&repository);
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("template");
    // The template launches its own kernels, and no kernel of the table.
    let none = target.join("no-ptx");
    fs::create_dir_all(&none).unwrap();
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--workspace", "--quiet", "--offline"]).current_dir(&folder).envs([
        (RUSTC_VARIABLE, compiler.rustc),
        ("CARGO_TARGET_DIR", target),
        ("FERROFLASH_PTX_DIR", none),
    ]);
    let output = cargo.output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{}", said.concat());
    assert!(said[0].contains("6 passed"), "{}", said.concat());
    let unexpected = said[1].lines().find(|line| line.contains("warning") && !line.contains("are embedded"));
    assert_eq!(unexpected, None, "{}", said[1]);
}
