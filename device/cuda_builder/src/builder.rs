//! [`CudaBuilder`]: what to build, and the steps from a device crate to one PTX module per entry.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs, thread};

use crate::cargo::{self, Invocation};
#[cfg(feature = "ptxas")]
use crate::gate;
use crate::module::Ptx;
#[cfg(feature = "ptxas")]
use crate::report::Reporter;
use crate::toolchain::{DeviceCompiler, workspace_root};
use crate::{Arch, Contract, Error, stamp};

/// How much of the source's lines goes into the PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DebugInfo {
    /// Nothing.
    None,
    /// `.file` and `.loc` lines, with the calls that inlining has dissolved as comments behind them. The instructions are the same as without.
    #[default]
    Lines,
}

/// Builds a device crate to PTX.
///
/// ```no_run
/// use cuda_builder::{Arch, Contract, CudaBuilder};
///
/// let output = CudaBuilder::new("kernels").arch(Arch::Sm80).entry(Contract::new("saxpy", 256)).build()?;
/// output.emit_rerun_if_changed();
/// println!("{}", output.modules[0].text);
/// # Ok::<(), cuda_builder::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct CudaBuilder {
    crate_root: PathBuf,
    arch: Arch,
    release: bool,
    debug: DebugInfo,
    features: Vec<String>,
    llvm_args: Vec<String>,
    contracts: Vec<Contract>,
    only: Option<Vec<String>>,
    copy_to: Option<PathBuf>,
    target_dir: Option<PathBuf>,
    jobs: Option<usize>,
    verbose: bool,
    #[cfg(feature = "ptxas")]
    check_on: Vec<Arch>,
}

/// What a build made.
#[derive(Debug)]
pub struct Output {
    /// The target.
    pub arch: Arch,
    /// One module per entry, in the order of the contracts.
    pub modules: Vec<Module>,
    /// The source files and manifests that the modules were made of.
    pub inputs: Vec<PathBuf>,
    /// What rustc warned of in the device crates; empty if nothing.
    pub warnings: String,
}

/// The PTX of one entry: a complete module.
#[derive(Debug, Clone)]
pub struct Module {
    /// The entry's launch contract.
    pub contract: Contract,
    /// The PTX text.
    pub text: String,
    /// The file that holds the same text.
    pub path: PathBuf,
}

impl CudaBuilder {
    /// Builds the crate in `crate_root`, the folder of its `Cargo.toml`: optimised, with lines, for [`Arch::Sm80`].
    pub fn new(crate_root: impl AsRef<Path>) -> Self {
        Self {
            crate_root: crate_root.as_ref().to_owned(),
            arch: Arch::Sm80,
            release: true,
            debug: DebugInfo::default(),
            features: Vec::new(),
            llvm_args: Vec::new(),
            contracts: Vec::new(),
            only: None,
            copy_to: None,
            target_dir: None,
            jobs: None,
            verbose: false,
            #[cfg(feature = "ptxas")]
            check_on: Vec::new(),
        }
    }

    /// The target.
    pub fn arch(mut self, arch: Arch) -> Self {
        self.arch = arch;
        self
    }

    /// `false` switches overflow checks and debug assertions on. Optimisation stays on in either case: unoptimised device code keeps its
    /// register arrays in local memory, and is of no use.
    pub fn release(mut self, release: bool) -> Self {
        self.release = release;
        self
    }

    /// Line information; [`DebugInfo::Lines`] unless told otherwise.
    pub fn debug(mut self, debug: DebugInfo) -> Self {
        self.debug = debug;
        self
    }

    /// Cargo features of the device crate to switch on.
    pub fn features<S: Into<String>>(mut self, features: impl IntoIterator<Item = S>) -> Self {
        self.features.extend(features.into_iter().map(Into::into));
        self
    }

    /// One more argument for LLVM, such as `-inline-threshold=1000`.
    pub fn llvm_arg(mut self, argument: impl Into<String>) -> Self {
        self.llvm_args.push(argument.into());
        self
    }

    /// The launch contract of one entry. Where there is any, every kernel of the crate needs one; without any, modules are not stamped.
    pub fn entry(mut self, contract: Contract) -> Self {
        self.contracts.push(contract);
        self
    }

    /// The launch contracts of several entries.
    pub fn entries(mut self, contracts: impl IntoIterator<Item = Contract>) -> Self {
        self.contracts.extend(contracts);
        self
    }

    /// Builds these entries alone, which takes a fraction of the time: for work on one kernel.
    pub fn only<S: Into<String>>(mut self, symbols: impl IntoIterator<Item = S>) -> Self {
        self.only = Some(symbols.into_iter().map(Into::into).collect());
        self
    }

    /// A folder that gets a copy of every module as `<entry>.ptx`.
    pub fn copy_to(mut self, folder: impl AsRef<Path>) -> Self {
        self.copy_to = Some(folder.as_ref().to_owned());
        self
    }

    /// Where to build, instead of `cuda-builder` below `CARGO_TARGET_DIR` or the workspace's `target`.
    pub fn target_dir(mut self, folder: impl AsRef<Path>) -> Self {
        self.target_dir = Some(folder.as_ref().to_owned());
        self
    }

    /// Compilers to run side by side, instead of one for each core.
    pub fn jobs(mut self, jobs: usize) -> Self {
        self.jobs = Some(jobs);
        self
    }

    /// Passes cargo's own output through to standard error.
    pub fn verbose(mut self, verbose: bool) -> Self {
        self.verbose = verbose;
        self
    }

    /// GPUs on which [`build`](Self::build) assembles every module and holds it against the rules of [`gate`](crate::gate). Without any,
    /// ptxas is not needed, and nothing is checked. Not for kernels with [`release(false)`](Self::release), which keep no rule.
    #[cfg(feature = "ptxas")]
    pub fn check_on(mut self, targets: impl IntoIterator<Item = Arch>) -> Self {
        self.check_on.extend(targets);
        self
    }

    /// Compiles the crate and writes one PTX module per entry; checks them where [`check_on`](Self::check_on) says so.
    ///
    /// LLVM works on one core, so the entries are dealt out to several compilers, each of which sees its share in `CUDA_BUILDER_ENTRIES`
    /// (symbols, comma-separated; unset means all) and leaves the other kernels out: `#[kernel]` of `cuda_std` does that. A crate that does not
    /// heed the variable is compiled whole by each of them, with the same result.
    ///
    /// # Errors
    /// [`Error`]: no device compiler, the crate does not compile, kernels and contracts do not match, or a kernel breaks a rule.
    pub fn build(&self) -> Result<Output, Error> {
        let crate_root = self.crate_root.canonicalize().map_err(Error::io("open", &self.crate_root))?;
        let workspace = workspace_root(&crate_root);
        let compiler = DeviceCompiler::locate(&workspace)?;
        let package = cargo::package_name(&crate_root)?;
        let folder = self.folder(&workspace).join(&package).join(self.arch.name());
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        // A build script and a task may want the same modules at once.
        let lock = folder.join("lock");
        let held = fs::File::create(&lock).and_then(|f| f.lock().map(|()| f)).map_err(Error::io("lock", &lock))?;

        let wanted = self.wanted()?;
        let shards = self.shards(&wanted);
        let shared = Invocation {
            compiler: &compiler,
            workspace: &workspace,
            crate_root: &crate_root,
            package: &package,
            arch: self.arch,
            release: self.release,
            debug: self.debug,
            features: &self.features,
            llvm_args: &self.llvm_args,
            verbose: self.verbose,
        };
        let built = thread::scope(|scope| {
            let handles: Vec<_> = (shards.iter().enumerate())
                .map(|(n, symbols)| {
                    let (shared, target_dir) = (&shared, folder.join(format!("shard-{n}")));
                    scope.spawn(move || shared.compile(symbols, &target_dir))
                })
                .collect();
            handles.into_iter().map(|h| h.join().expect("compile does not panic")).collect::<Result<Vec<_>, _>>()
        })?;
        let texts: Vec<_> = built.iter().map(|b| Ptx::parse(&b.ptx)).collect::<Result<_, _>>()?;

        let contracts = match wanted.is_empty() {
            true => {
                texts.iter().flat_map(Ptx::entries).map(|symbol| (Contract::new(symbol, 0), String::new())).collect()
            }
            false => {
                self.check_contracts(&texts)?;
                let stamped = wanted.iter().map(|&c| Ok((c.clone(), stamp::directives(c)?)));
                stamped.collect::<Result<Vec<_>, Error>>()?
            }
        };
        let ptx_folder = folder.join("ptx");
        let mut modules = Vec::new();
        for (contract, directives) in contracts {
            // The shard that was asked for the entry comes first: a crate that ignores the selection has it in the others too.
            let own = shards.iter().position(|s| s.contains(&contract.symbol.as_str())).unwrap_or(0);
            let text = (texts[own].module(&contract.symbol, &directives))
                .ok_or_else(|| Error::MissingEntry { symbol: contract.symbol.clone() })?;
            let path = write_module(&ptx_folder, &contract.symbol, &text)?;
            if let Some(copies) = &self.copy_to {
                write_module(copies, &contract.symbol, &text)?;
            }
            modules.push(Module { contract, text, path });
        }
        let inputs: BTreeSet<PathBuf> = built.iter().flat_map(|b| b.inputs.iter().cloned()).collect();
        let warnings = built.into_iter().map(|b| b.warnings).find(|w| !w.is_empty()).unwrap_or_default();
        drop(held);
        let output = Output { arch: self.arch, modules, inputs: inputs.into_iter().collect(), warnings };
        #[cfg(feature = "ptxas")]
        if !self.check_on.is_empty() {
            let reporter = Reporter::new(&workspace, self.folder(&workspace).join("reports"))?;
            let reports = reporter.report_all(&output.modules, &self.check_on, || {})?;
            gate::check(reports.iter().map(|(module, report)| (&module.contract, report)))?;
        }
        Ok(output)
    }

    fn folder(&self, workspace: &Path) -> PathBuf {
        let default = || env::var_os("CARGO_TARGET_DIR").map_or(workspace.join("target"), PathBuf::from);
        self.target_dir.clone().unwrap_or_else(|| default().join("cuda-builder"))
    }

    /// The contracts to build, every symbol once.
    fn wanted(&self) -> Result<Vec<&Contract>, Error> {
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.contracts.iter().find(|c| !seen.insert(&c.symbol)) {
            return Err(Error::DuplicateContract { symbol: twice.symbol.clone() });
        }
        let Some(only) = &self.only else { return Ok(self.contracts.iter().collect()) };
        let find = |symbol: &String| {
            let found = self.contracts.iter().find(|c| c.symbol == *symbol);
            found.ok_or_else(|| Error::MissingEntry { symbol: symbol.clone() })
        };
        only.iter().map(find).collect()
    }

    /// Deals the symbols out to the compilers: round the table, because neighbours cost alike.
    fn shards<'c>(&self, wanted: &[&'c Contract]) -> Vec<Vec<&'c str>> {
        let cores = || thread::available_parallelism().map_or(1, |n| n.get().min(8));
        let count = self.jobs.unwrap_or_else(cores).clamp(1, wanted.len().max(1));
        let deal = |n| wanted.iter().skip(n).step_by(count).map(|c| c.symbol.as_str()).collect();
        (0..count).map(deal).collect()
    }

    /// Every kernel has a contract. That every contract has its kernel shows when its module is made.
    fn check_contracts(&self, texts: &[Ptx<'_>]) -> Result<(), Error> {
        let known: BTreeSet<&str> = self.contracts.iter().map(|c| c.symbol.as_str()).collect();
        match texts.iter().flat_map(Ptx::entries).find(|symbol| !known.contains(symbol)) {
            Some(symbol) => Err(Error::UncontractedEntry { symbol: symbol.to_owned() }),
            None => Ok(()),
        }
    }
}

impl Output {
    /// Tells cargo to run the build script again when a source of the kernels or the choice of the compiler changes.
    pub fn emit_rerun_if_changed(&self) {
        for input in &self.inputs {
            println!("cargo:rerun-if-changed={}", input.display());
        }
        println!("cargo:rerun-if-env-changed={}", crate::toolchain::RUSTC_VARIABLE);
    }
}

/// Writes a module unless the file holds it already: an untouched file keeps its time, and what depends on it stays fresh.
fn write_module(folder: &Path, symbol: &str, text: &str) -> Result<PathBuf, Error> {
    let path = folder.join(format!("{symbol}.ptx"));
    if fs::read(&path).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(path);
    }
    fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let part = folder.join(format!("{symbol}.ptx.part"));
    fs::write(&part, text).map_err(Error::io("write", &part))?;
    fs::rename(&part, &path).map_err(Error::io("write", &path))?;
    Ok(path)
}
