//! Runs cargo with the device compiler. Only this file knows the compiler's flags.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::toolchain::DeviceCompiler;
use crate::{Arch, Error, alone, outer};

const TARGET: &str = "nvptx64-nvidia-cuda";

/// The source lines that the PTX contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DebugInfo {
    /// The PTX contains no source lines.
    None,
    /// The PTX contains `.file` and `.loc` lines, followed by the inlined calls as comments. These lines do
    /// not change the instructions.
    #[default]
    Lines,
}

/// The settings that all compilers of one build share.
pub(crate) struct Invocation<'a> {
    pub compiler: &'a DeviceCompiler,
    pub workspace: &'a Path,
    pub crate_root: &'a Path,
    /// The manifest of a workspace with this crate alone, which is compiled in place of the crate's own.
    pub alone: Option<&'a Path>,
    pub package: &'a str,
    pub arch: Arch,
    pub release: bool,
    pub debug: DebugInfo,
    pub features: &'a [String],
    pub llvm_args: &'a [String],
    pub verbose: bool,
}

/// The output of one compiler.
pub(crate) struct Compiled {
    pub ptx: String,
    pub inputs: Vec<PathBuf>,
    pub warnings: String,
}

impl Invocation<'_> {
    /// Compiles the crate with the kernels `symbols`, or with all kernels if there are no symbols. Cargo
    /// compiles only what has changed.
    pub(crate) fn compile(&self, symbols: &[&str], target_dir: &Path) -> Result<Compiled, Error> {
        let stderr = self.run(&["--emit=asm"], symbols, target_dir)?;
        let release = target_dir.join(TARGET).join("release");
        let stem = library_name(self.crate_root, self.package)?;
        let assembly = release.join("deps").join(format!("{stem}.s"));
        // Cargo treats the crate as stale if the linker's output is missing.
        let linked = release.join("deps").join(format!("{stem}.ptx"));
        fs::write(&linked, "").map_err(Error::io("write", &linked))?;
        let ptx = fs::read_to_string(&assembly).map_err(Error::io("read", &assembly))?;
        let inputs = self.inputs(&release.join(format!("{stem}.d")))?;
        Ok(Compiled { ptx, inputs, warnings: warnings(&stderr) })
    }

    /// Compiles the crate's dependencies, and checks the crate with the kernels `symbols`. rustc generates no
    /// code for the crate.
    pub(crate) fn check(&self, symbols: &[&str], target_dir: &Path) -> Result<(), Error> {
        self.run(&["-Zno-codegen"], symbols, target_dir).map(drop)
    }

    /// Runs cargo, and returns the text of its standard error. `flags` are for rustc and this crate alone.
    fn run(&self, flags: &[&str], symbols: &[&str], target_dir: &Path) -> Result<String, Error> {
        let mut command = outer::cargo();
        command.current_dir(self.alone.map_or_else(|| self.crate_root.to_owned(), outer::folder));
        command.envs(self.profile()).envs([
            ("RUSTC", self.compiler.rustc.clone().into_os_string()),
            ("RUSTC_BOOTSTRAP", "1".into()),
            ("CARGO_ENCODED_RUSTFLAGS", self.rustflags().join("\x1f").into()),
            ("CARGO_TERM_COLOR", "never".into()),
        ]);
        if let Some(path) = self.compiler.joined_library_path() {
            command.env("LD_LIBRARY_PATH", path);
        }
        command.args([
            "rustc",
            "--lib",
            "--release",
            "--target",
            TARGET,
            "-Zbuild-std=core",
            "--crate-type=cdylib",
        ]);
        command.arg("--target-dir").arg(target_dir);
        if let Some(manifest) = self.alone {
            command.arg("--manifest-path").arg(manifest);
            if let Some(packages) = alone::packages(manifest) {
                command.args(["--config", "source.crates-io.replace-with='cuda-builder'", "--config"]);
                command.arg(format!("source.cuda-builder.directory='{}'", packages.display()));
            }
        }
        if outer::is_offline() {
            command.arg("--offline");
        }
        outer::share_jobserver(&mut command);
        if !self.features.is_empty() {
            command.arg("--features").arg(self.features.join(","));
        }
        if self.verbose {
            command.arg("--verbose");
        }
        command.arg("--").args(flags).args(self.llvm_flags());
        // Features that kernels and `cuda_std`'s macros need. Crates need not enable these features
        // themselves.
        command.arg("-Zcrate-attr=feature(abi_ptx, asm_experimental_arch)");
        command.args(["-Aduplicate-features", "-Aunused-features"]);
        if self.debug == DebugInfo::Lines {
            // A `.loc` directive does not contain the inlined calls. With this argument, a comment behind
            // each directive contains them.
            command.arg("-Zverbose-asm");
        }
        if !symbols.is_empty() {
            let list = symbols.join(",");
            // Cargo does not notice a change of this environment variable. Cargo does notice changed
            // arguments of the last crate, so these arguments contain a hash of the list.
            command.arg(format!("--cfg=cuda_builder_entries=\"{:016x}\"", hash(&list)));
            command.env("CUDA_BUILDER_ENTRIES", list);
        }

        let output = command.output().map_err(Error::io("run", "cargo"))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        if self.verbose {
            eprint!("{stderr}");
        }
        if !output.status.success() {
            let arch = self.arch.name();
            return Err(Error::Compile { arch, status: output.status, stderr: stderr.into_owned() });
        }
        Ok(stderr.into_owned())
    }

    /// All inputs that determine the result and may differ between builds, except for the sources.
    pub(crate) fn recipe(&self) -> impl Hash {
        let crate_root = self.crate_root.strip_prefix(self.workspace).unwrap_or(self.crate_root);
        let flags = (self.release, self.debug, self.features.to_vec(), self.llvm_args.to_vec());
        (self.compiler.version.clone(), crate_root.to_owned(), self.arch, flags)
    }

    /// The arguments for LLVM. LLVM optimises all crates together when it compiles the last one, so `core`
    /// stays compiled when these arguments change.
    fn llvm_flags(&self) -> impl Iterator<Item = String> {
        const ALWAYS: [&str; 2] = [
            // Without this argument, loops over 64 registers stay loops, and the registers become an array in
            // local memory.
            "-unroll-threshold=1000000",
            // A call would pass a fragment through local memory, so everything in a kernel must be inlined.
            "-inline-threshold=100000",
        ];
        let arguments = ALWAYS.into_iter().chain(self.llvm_args.iter().map(String::as_str));
        arguments.map(|argument| format!("-Cllvm-args={argument}"))
    }

    fn rustflags(&self) -> Vec<String> {
        let mut flags = vec![
            format!("-Ctarget-cpu={}", self.arch.name()),
            format!("-Ctarget-feature={}", self.arch.ptx_feature()),
            // The PTX is the assembly that rustc emits. The linker's output is not used.
            "-Clinker=true".to_owned(),
            // This pass clones barriers into both arms of a branch that threads of one warp take differently,
            // which is wrong.
            "-Zmir-enable-passes=-JumpThreading".to_owned(),
            // These arguments make the text independent of the machine. Cargo compiles all crates again if an
            // argument changes, so two workspaces with one build folder never use each other's crates.
            format!("--remap-path-prefix={}=rust-src", self.compiler.library_source.display()),
            format!("--remap-path-prefix={}=.", self.workspace.display()),
        ];
        if let Some(folder) = self.alone.and_then(Path::parent) {
            let place = self.crate_root.strip_prefix(self.workspace).unwrap_or(self.crate_root);
            flags.push(format!("--remap-path-prefix={}={}", folder.display(), place.display()));
        }
        flags
    }

    /// Sets profile values by environment variables, so that the device crate's workspace needs no profile.
    fn profile(&self) -> Vec<(&'static str, OsString)> {
        let checks = if self.release { "false" } else { "true" };
        let lines = match self.debug {
            DebugInfo::None => "none",
            DebugInfo::Lines => "line-directives-only",
        };
        [
            ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3"),
            ("CARGO_PROFILE_RELEASE_LTO", "fat"),
            ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
            ("CARGO_PROFILE_RELEASE_PANIC", "abort"),
            ("CARGO_PROFILE_RELEASE_INCREMENTAL", "false"),
            ("CARGO_PROFILE_RELEASE_DEBUG", lines),
            ("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", checks),
            ("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", checks),
        ]
        .map(|(name, value)| (name, value.into()))
        .into()
    }

    /// The sources in cargo's dep-info, the manifests above them, the workspace's manifests, and its lock
    /// file.
    fn inputs(&self, dep_info: &Path) -> Result<Vec<PathBuf>, Error> {
        let text = fs::read_to_string(dep_info).map_err(Error::io("read", dep_info))?;
        let mut inputs = BTreeSet::new();
        for source in dependencies(&text) {
            let source = self.crate_root.join(source);
            // The sources of a workspace with one crate are links.
            let source = source.canonicalize().map_err(Error::io("find", &source))?;
            let manifest =
                source.ancestors().skip(1).map(|folder| folder.join("Cargo.toml")).find(|m| m.is_file());
            inputs.extend(manifest);
            inputs.insert(source);
        }
        let shared = ["Cargo.toml", "Cargo.lock"].map(|name| self.workspace.join(name));
        inputs.extend(shared.into_iter().filter(|file| file.is_file()));
        Ok(inputs.into_iter().collect())
    }
}

/// The package name in a crate's manifest.
pub(crate) fn package_name(crate_root: &Path) -> Result<String, Error> {
    let manifest = crate_root.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).map_err(Error::io("read", &manifest))?;
    name_in_table(&text, "package")
        .ok_or_else(|| Error::Manifest { manifest, problem: "its [package] has no name".to_owned() })
}

/// The name of a crate's library, which names rustc's output.
fn library_name(crate_root: &Path, package: &str) -> Result<String, Error> {
    let manifest = crate_root.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).map_err(Error::io("read", &manifest))?;
    Ok(name_in_table(&text, "lib").unwrap_or_else(|| package.to_owned()).replace('-', "_"))
}

/// The string value of the key `name` in the top-level table `table` of a manifest.
fn name_in_table(manifest: &str, table: &str) -> Option<String> {
    let header = format!("[{table}]");
    let body = manifest.lines().map(str::trim).skip_while(|line| *line != header).skip(1);
    body.take_while(|line| !line.starts_with('[')).find_map(|line| {
        let value = line.strip_prefix("name")?.trim_start().strip_prefix('=')?;
        Some(value.split('"').nth(1)?.to_owned())
    })
}

/// The dependencies in a Makefile rule in cargo's form, in which a backslash escapes a blank in a name.
fn dependencies(dep_info: &str) -> Vec<String> {
    let Some((_, list)) = dep_info.split_once(": ") else { return Vec::new() };
    let list = list.lines().next().unwrap_or_default().replace("\\ ", "\0");
    list.split_whitespace().map(|name| name.replace('\0', " ")).collect()
}

/// rustc's warnings about the code, without the warning that rustc always prints about the target feature
/// flag.
fn warnings(stderr: &str) -> String {
    let about_code = |part: &&str| part.starts_with("warning") && part.contains("-->");
    stderr.split("\n\n").map(str::trim).filter(about_code).collect::<Vec<_>>().join("\n\n")
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
