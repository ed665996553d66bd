//! Errors of a build. Each message names the cause, and the remedy if the cause does not imply it.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitStatus;

/// The reason why a build has failed.
///
/// `Debug` prints the text of `Display`, because a build script prints the `Debug` of an error from
/// `main`.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no rustc with matching sources of `core`.
    #[error(
        "no device compiler: {looked}\nIt is a rustc with sources: run `rustup component add rust-src`, or \
         `cargo xtask setup` in FerroFlash's checkout, or set FERROFLASH_DEVICE_RUSTC to a rustc that has \
         them"
    )]
    NoDeviceCompiler {
        /// The places that were searched, and what each of them lacks.
        looked: String,
    },
    /// There is no such tool of the CUDA toolkit.
    #[error(
        "no {tool}: looked at ${variable}, PATH, {}\nIt comes with the CUDA toolkit, or alone from PyPI \
         (nvidia-cuda-nvcc, nvidia-cuda-nvdisasm, nvidia-cuda-cuobjdump); put it on PATH, or set {variable} \
         to it",
        paths(folders)
    )]
    NoTool {
        /// The tool's name: `ptxas`, `nvdisasm` or `cuobjdump`.
        tool: &'static str,
        /// The environment variable that overrides the search.
        variable: &'static str,
        /// The folders of setup, in which the search ends.
        folders: Vec<PathBuf>,
    },
    /// A target has an unknown name.
    #[error("unknown target `{name}`: expected sm_80, sm_86, sm_89, sm_90 or sm_90a")]
    UnknownArch {
        /// The unknown name.
        name: String,
    },
    /// A contract names a generation of GPUs that this crate does not know.
    #[error(
        "entry `{symbol}` targets GPUs {target}: use from sm_80, sm_86, sm_89 or sm_90, or exactly sm_90a"
    )]
    UnknownTarget {
        /// The symbol of the entry.
        symbol: String,
        /// The target in the contract.
        target: contract::Target,
    },
    /// The device crate's manifest is missing, or it has no package name.
    #[error("{manifest}: {problem}")]
    Manifest {
        /// The path of the manifest.
        manifest: PathBuf,
        /// The problem, in words.
        problem: String,
    },
    /// Cargo failed. Its output gives the reason.
    #[error("the device crate does not compile for {arch} ({status}):\n{stderr}")]
    Compile {
        /// The name of the target.
        arch: &'static str,
        /// Cargo's exit status.
        status: ExitStatus,
        /// The output of cargo and rustc.
        stderr: String,
    },
    /// An entry has a contract but no kernel.
    #[error("entry `{symbol}` has a launch contract, but the device crate defines no such kernel")]
    MissingEntry {
        /// The symbol of the entry.
        symbol: String,
    },
    /// A kernel has no contract.
    #[error("the device crate defines kernel `{symbol}`, but no launch contract names it")]
    UncontractedEntry {
        /// The symbol of the kernel.
        symbol: String,
    },
    /// Two contracts name the same entry.
    #[error("entry `{symbol}` has two launch contracts")]
    DuplicateContract {
        /// The symbol of the entry.
        symbol: String,
    },
    /// A contract has an invalid number of threads.
    #[error("entry `{symbol}`: {threads} threads per block; a block has 1 to 1024")]
    Threads {
        /// The symbol of the entry.
        symbol: String,
        /// Threads per block in the contract.
        threads: u32,
    },
    /// The PTX text does not have the form that rustc writes.
    #[error("PTX line {line}: {problem}")]
    Ptx {
        /// The number of the line, from 1.
        line: usize,
        /// The problem, in words.
        problem: String,
    },
    /// LLVM may clone an instruction that the threads of a warp or a block must execute together.
    #[error(
        "`{symbol}` has `{instruction}` in a plain asm!, which LLVM may clone into both arms of a branch: \
         write it with cuda_std's convergent_asm!"
    )]
    Unguarded {
        /// The name of the kernel or function.
        symbol: String,
        /// The instruction, as PTX text.
        instruction: String,
    },
    /// A text of source lines does not match its code.
    #[error("source lines, line {line}: {problem}")]
    Lines {
        /// The number of the line, from 1.
        line: usize,
        /// The problem, in words.
        problem: &'static str,
    },
    /// A tool ran and failed.
    #[error("{tool} failed on {subject} ({status}):\n{output}")]
    Tool {
        /// The name of the tool.
        tool: &'static str,
        /// The entry and the target.
        subject: String,
        /// The tool's exit status.
        status: ExitStatus,
        /// The tool's output.
        output: String,
    },
    /// A tool's output lacks a part that this crate reads.
    #[error("{tool}'s output on {subject} has no {what}")]
    ToolOutput {
        /// The name of the tool.
        tool: &'static str,
        /// The entry and the target.
        subject: String,
        /// The part that is missing.
        what: &'static str,
    },
    /// Entries break the rules of `gate`. The message has one line per breach.
    #[cfg(feature = "ptxas")]
    #[error("{} broken by the kernels:\n{}", plural(.0.len()), lines(.0))]
    Rules(Vec<crate::breach::Breach>),
    /// A source has changed while the kernels were compiled.
    #[error(
        "{}: it has changed since the build began, so some kernels may have its old content; build again",
        .input.display()
    )]
    Changed {
        /// The source.
        input: PathBuf,
    },
    /// A file or a process could not be used.
    #[error("{action} {path}: {source}")]
    Io {
        /// The action that failed: `read`, `write`, `run`, ...
        action: &'static str,
        /// The path of the file or program.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { action, path, source }
    }
}

fn paths(folders: &[PathBuf]) -> String {
    folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(feature = "ptxas")]
fn plural(n: usize) -> String {
    if n == 1 { "a rule is".to_owned() } else { format!("{n} rules are") }
}

#[cfg(feature = "ptxas")]
fn lines(breaches: &[crate::breach::Breach]) -> String {
    breaches.iter().map(|b| format!("  {b}")).collect::<Vec<_>>().join("\n")
}
