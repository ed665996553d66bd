//! Finds the device compiler (a rustc with matching sources of `core`) and NVIDIA's assembler and
//! disassembler.
//!
//! This file downloads nothing. `cargo xtask setup` unpacks a compiler into [`FOLDER`] below the workspace's
//! root, regardless of `CARGO_TARGET_DIR`, so that all builds of a checkout share the compiler.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::Error;

/// The folder into which setup unpacks its downloads, relative to the workspace's root.
pub const FOLDER: &str = "target/ferroflash-toolchain";

/// The root, below [`FOLDER`], into which setup unpacks Debian's compiler packages.
pub const DEBIAN: &str = "debian";

/// The folder of NVIDIA's tools below [`FOLDER`], in the layout of their wheels.
pub const CUDA_BIN: &str = "cuda/nvidia/cu13/bin";

/// The environment variable that overrides the search for the device compiler.
pub const RUSTC_VARIABLE: &str = "FERROFLASH_DEVICE_RUSTC";

/// A rustc that can compile `core` for the GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceCompiler {
    /// The path of rustc.
    pub rustc: PathBuf,
    /// The folders of the compiler's shared libraries, if the loader does not find them by itself. The list
    /// is empty for a rustup toolchain.
    pub library_path: Vec<PathBuf>,
    /// The folder of the standard library's sources that belong to the compiler.
    pub library_source: PathBuf,
    /// The output of `rustc -V`, in one line.
    pub version: String,
}

impl DeviceCompiler {
    /// Searches the path in the environment variable, then the active toolchain of `workspace`, then the
    /// Debian packages that setup has unpacked in `workspace` or in the checkout that contains this crate.
    ///
    /// # Errors
    /// Returns [`Error::NoDeviceCompiler`] with the places that were searched.
    pub fn locate(workspace: &Path) -> Result<Self, Error> {
        if let Some(path) = env::var_os(RUSTC_VARIABLE) {
            let path = PathBuf::from(path);
            return Self::inspect(&path).map_err(|problem| Error::NoDeviceCompiler {
                looked: format!("{RUSTC_VARIABLE} is {}, but {problem}", path.display()),
            });
        }
        let mut looked = Vec::new();
        let unpacked = setup_folders(workspace).into_iter();
        let unpacked = unpacked.map(|f| ("the unpacked compiler", f.join(DEBIAN).join("usr/bin/rustc")));
        for (what, rustc) in [("the active toolchain", active_rustc(workspace))].into_iter().chain(unpacked) {
            match Self::inspect(&rustc) {
                Ok(found) => return Ok(found),
                Err(problem) => looked.push(format!("{what} ({}): {problem}", rustc.display())),
            }
        }
        Err(Error::NoDeviceCompiler { looked: looked.join("; ") })
    }

    /// Checks that `rustc` runs and has the sources of the standard library. The error names the missing
    /// part.
    pub fn inspect(rustc: &Path) -> Result<Self, String> {
        let mut found = Self {
            rustc: rustc.to_owned(),
            library_path: library_path(rustc),
            library_source: PathBuf::new(),
            version: String::new(),
        };
        let ask = |argument: &[&str]| -> Result<String, String> {
            let output =
                found.command().args(argument).output().map_err(|e| format!("does not start: {e}"))?;
            if !output.status.success() {
                return Err(format!("does not run: {}", String::from_utf8_lossy(&output.stderr).trim()));
            }
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let version = ask(&["-V"])?;
        let library = Path::new(&ask(&["--print", "sysroot"])?).join("lib/rustlib/src/rust/library");
        if !library.join("core/src/lib.rs").is_file() {
            return Err(format!("{version} has no rust-src"));
        }
        found.version = version;
        found.library_source = library;
        Ok(found)
    }

    /// A command that runs this compiler.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.rustc);
        if let Some(path) = self.joined_library_path() {
            command.env("LD_LIBRARY_PATH", path);
        }
        command
    }

    /// The value of `LD_LIBRARY_PATH` for a process that runs this compiler; `None` if the process needs
    /// none.
    pub fn joined_library_path(&self) -> Option<std::ffi::OsString> {
        if self.library_path.is_empty() {
            return None;
        }
        let inherited = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        env::join_paths(
            self.library_path
                .iter()
                .cloned()
                .chain(env::split_paths(&inherited).filter(|p| p.as_os_str() != "")),
        )
        .ok()
    }
}

/// The folders of setup's downloads: in `workspace`, and in the checkout that contains this crate. A crate
/// outside of the checkout is a workspace of its own.
fn setup_folders(workspace: &Path) -> Vec<PathBuf> {
    let this = Path::new(env!("CARGO_MANIFEST_DIR"));
    let checkout = workspace_root(this);
    // A crate from a registry is in no checkout.
    let is_other = checkout != workspace && checkout != this;
    let roots = [Some(workspace), is_other.then_some(&*checkout)];
    roots.into_iter().flatten().map(|root| root.join(FOLDER)).collect()
}

/// The rustc that cargo would use in `workspace`.
fn active_rustc(workspace: &Path) -> PathBuf {
    // In a build script, RUSTC may be the rustup proxy, which starts another process in every call. The
    // binary in the sysroot starts no other process.
    let output = Command::new("rustc").args(["--print", "sysroot"]).current_dir(workspace).output();
    match output {
        Ok(output) if output.status.success() => {
            Path::new(String::from_utf8_lossy(&output.stdout).trim()).join("bin/rustc")
        }
        _ => PathBuf::from("rustc"),
    }
}

/// The folders below `PREFIX/usr/lib` and `PREFIX/lib` that contain the libraries of an unpacked
/// distribution's rustc.
fn library_path(rustc: &Path) -> Vec<PathBuf> {
    let Some(usr) = rustc.parent().and_then(Path::parent) else { return Vec::new() };
    let multiarch = |lib: PathBuf| -> Vec<PathBuf> {
        let entries = fs::read_dir(lib).into_iter().flatten().flatten();
        entries
            .map(|e| e.path())
            .filter(|p| p.to_string_lossy().ends_with("-linux-gnu") && p.is_dir())
            .collect()
    };
    let own = multiarch(usr.join("lib"));
    let holds_driver = |folder: &PathBuf| {
        let mut files = fs::read_dir(folder).into_iter().flatten().flatten();
        files.any(|f| f.file_name().to_string_lossy().starts_with("librustc_driver"))
    };
    // A rustc that the system installed finds its libraries. rustup's rustc has no libraries in such a
    // folder.
    if !own.iter().any(holds_driver) || usr == Path::new("/usr") {
        return Vec::new();
    }
    let root = usr.parent().map(|root| multiarch(root.join("lib"))).unwrap_or_default();
    own.into_iter().chain(root).collect()
}

/// A tool of the CUDA toolkit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CudaTool {
    /// The assembler, from PTX to SASS.
    Ptxas,
    /// The disassembler of cubins.
    Nvdisasm,
    /// The disassembler of executables.
    Cuobjdump,
}

impl CudaTool {
    /// All tools.
    pub const ALL: [CudaTool; 3] = [CudaTool::Ptxas, CudaTool::Nvdisasm, CudaTool::Cuobjdump];

    /// The name of the binary.
    pub const fn name(self) -> &'static str {
        match self {
            CudaTool::Ptxas => "ptxas",
            CudaTool::Nvdisasm => "nvdisasm",
            CudaTool::Cuobjdump => "cuobjdump",
        }
    }

    /// The environment variable that overrides the search for the tool.
    pub const fn variable(self) -> &'static str {
        match self {
            CudaTool::Ptxas => "PTXAS",
            CudaTool::Nvdisasm => "NVDISASM",
            CudaTool::Cuobjdump => "CUOBJDUMP",
        }
    }

    /// Searches the path in the environment variable, then PATH, then setup's folder in `workspace` and in
    /// the checkout that contains this crate.
    ///
    /// # Errors
    /// Returns [`Error::NoTool`], which names the remedy.
    pub fn locate(self, workspace: &Path) -> Result<PathBuf, Error> {
        if let Some(path) = env::var_os(self.variable()) {
            return Ok(PathBuf::from(path));
        }
        let folders: Vec<_> = setup_folders(workspace).into_iter().map(|f| f.join(CUDA_BIN)).collect();
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path)
            .chain(folders.iter().cloned())
            .map(|folder| folder.join(self.name()))
            .find(|tool| tool.is_file())
            .ok_or(Error::NoTool { tool: self.name(), variable: self.variable(), folders })
    }
}

/// The workspace of `crate_root`: the outermost folder above it whose manifest has a `[workspace]` table,
/// otherwise `crate_root` itself. The search leaves neither a repository nor a checkout of FerroFlash: a
/// checkout inside another workspace is independent, as a submodule and as a copy.
pub fn workspace_root(crate_root: &Path) -> PathBuf {
    workspaces(crate_root).last().unwrap_or(crate_root).to_owned()
}

/// The folders above `crate_root` whose manifests have a `[workspace]` table, innermost first.
pub(crate) fn workspaces(crate_root: &Path) -> impl Iterator<Item = &Path> {
    let is_workspace = |folder: &&Path| {
        fs::read_to_string(folder.join("Cargo.toml"))
            .is_ok_and(|text| text.lines().any(|line| line.trim_start().starts_with("[workspace")))
    };
    let is_end = |folder: &Path| folder.join(".git").exists() || is_checkout(folder);
    let depth = crate_root.ancestors().position(is_end);
    crate_root.ancestors().take(depth.map_or(usize::MAX, |depth| depth + 1)).filter(is_workspace)
}

/// Whether a folder is the root of a checkout of FerroFlash, by the manifest of this crate.
pub(crate) fn is_checkout(folder: &Path) -> bool {
    folder.join("device/cuda_builder/Cargo.toml").is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkout_inside_another_workspace_is_independent() {
        let outer = env::temp_dir().join(format!("ferroflash-roots-{}", std::process::id()));
        let _ = fs::remove_dir_all(&outer);
        let write = |path: &str, text: &str| {
            let path = outer.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(".git/HEAD", "");
        write("Cargo.toml", "[workspace]\n");
        write("kernels/Cargo.toml", "[package]\n");
        write("third_party/ferroflash/Cargo.toml", "[workspace]\n");
        write("third_party/ferroflash/device/cuda_builder/Cargo.toml", "[package]\n");
        write("third_party/ferroflash/examples/own/Cargo.toml", "[workspace]\n");
        let copy = outer.join("third_party/ferroflash");
        for inside in ["kernels-gpu", "examples/own", "examples/own/kernels"] {
            assert_eq!(workspace_root(&copy.join(inside)), copy, "{inside}");
        }
        assert_eq!(workspace_root(&outer.join("kernels")), outer);
        fs::remove_dir_all(&outer).unwrap();
    }
}
