//! Runs ptxas and nvdisasm on one module, and parses the output of ptxas.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::toolchain::CudaTool;
use crate::{Arch, Error};

/// The tools ptxas and nvdisasm, with their versions.
#[derive(Debug, Clone)]
pub struct Assembler {
    ptxas: PathBuf,
    nvdisasm: PathBuf,
    version: String,
}

/// The report of ptxas about one entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// Registers per thread.
    pub registers: u32,
    /// Stack frame in bytes.
    pub stack: u32,
    /// Number of bytes of spill stores.
    pub spill_stores: u32,
    /// Number of bytes of spill loads.
    pub spill_loads: u32,
    /// Static shared memory in bytes.
    pub static_smem: u32,
    /// The messages `C75xx`, by which ptxas reports serialised `wgmma` products.
    pub serialised: Vec<String>,
}

impl Assembler {
    /// Finds both tools for `workspace`, and asks them for their versions.
    ///
    /// # Errors
    /// Returns [`Error::NoTool`] if a tool is missing, or the error of a tool that does not run.
    pub fn locate(workspace: &Path) -> Result<Self, Error> {
        Self::new(CudaTool::Ptxas.locate(workspace)?, CudaTool::Nvdisasm.locate(workspace)?)
    }

    /// This assembler with another ptxas, for example of another CUDA version.
    ///
    /// # Errors
    /// Returns the error of a tool that does not run.
    pub fn with_ptxas(self, ptxas: &Path) -> Result<Self, Error> {
        Self::new(ptxas.to_owned(), self.nvdisasm)
    }

    fn new(ptxas: PathBuf, nvdisasm: PathBuf) -> Result<Self, Error> {
        let version = [
            run(CudaTool::Ptxas, &ptxas, &["--version"], "--version")?,
            run(CudaTool::Nvdisasm, &nvdisasm, &["--version"], "--version")?,
        ]
        .concat();
        Ok(Self { ptxas, nvdisasm, version })
    }

    /// The version texts of ptxas and nvdisasm.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Assembles the PTX text `ptx`, which has the entry `entry`, into `cubin`. Returns ptxas's report, which
    /// [`Resources::parse`] reads.
    ///
    /// # Errors
    /// Returns [`Error::Tool`] with ptxas's message if it refuses the text.
    pub fn assemble(&self, entry: &str, target: Arch, ptx: &Path, cubin: &Path) -> Result<String, Error> {
        let subject = format!("{entry} for {target}");
        let arch = format!("-arch={target}");
        let arguments = ["-v", &arch, &ptx.to_string_lossy(), "-o", &cubin.to_string_lossy()];
        run(CudaTool::Ptxas, &self.ptxas, &arguments, &subject)
    }

    /// The disassembly of `cubin`.
    ///
    /// # Errors
    /// Returns [`Error::Tool`] if nvdisasm refuses the file.
    pub fn disassemble(&self, entry: &str, target: Arch, cubin: &Path) -> Result<String, Error> {
        let subject = format!("{entry} for {target}");
        run(CudaTool::Nvdisasm, &self.nvdisasm, &["-c", &cubin.to_string_lossy()], &subject)
    }
}

impl Resources {
    /// Parses the lines of `ptxas -v` that describe `entry`. Returns `None` if they do not state the number
    /// of registers.
    pub fn parse(entry: &str, said: &str) -> Option<Self> {
        let mut found = Self::default();
        let mut registers = None;
        // Device functions in the module have their own lines, which do not count.
        let mut current = "";
        for line in said.lines() {
            if let Some(name) =
                after(line, "Compiling entry function '").or_else(|| after(line, "Function properties for "))
            {
                current = name.split(['\'', ' ']).next().unwrap_or(name);
            }
            // Such a message may name a kernel or a device function. Without the name of another entry, it
            // counts for every entry.
            let is_another =
                |name: &str| name != entry && said.contains(&format!("Compiling entry function '{name}'"));
            let names_another =
                || after(line, "function '").and_then(|name| name.split('\'').next()).is_some_and(is_another);
            if line.contains("(C75") && !names_another() {
                found.serialised.push(line.trim().to_owned());
            }
            if current != entry {
                continue;
            }
            if let Some(frame) = number_before(line, " bytes stack frame") {
                found.stack = frame;
                found.spill_stores = number_before(line, " bytes spill stores").unwrap_or(0);
                found.spill_loads = number_before(line, " bytes spill loads").unwrap_or(0);
            }
            if let Some(used) = number_before(line, " registers") {
                registers = Some(used);
                found.static_smem = number_before(line, " bytes smem").unwrap_or(0);
            }
        }
        found.registers = registers?;
        Some(found)
    }
}

fn after<'a>(line: &'a str, words: &str) -> Option<&'a str> {
    line.split_once(words).map(|(_, rest)| rest)
}

fn number_before(line: &str, words: &str) -> Option<u32> {
    let (before, _) = line.split_once(words)?;
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Runs a tool, and returns its standard output and standard error.
fn run(tool: CudaTool, path: &Path, arguments: &[&str], subject: &str) -> Result<String, Error> {
    let output = Command::new(path).args(arguments).output().map_err(Error::io("run", path))?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    Err(Error::Tool { tool: tool.name(), subject: subject.to_owned(), status: output.status, output: text })
}
