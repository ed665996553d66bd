//! [`CudaBuilder`]: options of a build, and the steps from a device crate to one PTX module per entry.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{env, slice};

#[cfg(feature = "archive")]
use crate::archive;
use crate::cache;
use crate::cargo::{DebugInfo, Invocation};
#[cfg(feature = "ptxas")]
use crate::gate;
use crate::group::{self, Group};
use crate::output::{Module, Output};
use crate::progress::{Progress, Report};
#[cfg(feature = "ptxas")]
use crate::report::Reporter;
use crate::site::{Site, write_module};
#[cfg(feature = "archive")]
use crate::sources::{Carried, Sources};
use crate::{Arch, Contract, Error, Target};

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
    report: Option<Report>,
    #[cfg(feature = "ptxas")]
    check_on: Vec<Arch>,
}

impl CudaBuilder {
    /// Builds the crate in `crate_root`, the folder of its `Cargo.toml`. By default, the build is optimised,
    /// has source lines, and is for [`Arch::Sm80`].
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
            report: None,
            #[cfg(feature = "ptxas")]
            check_on: Vec::new(),
        }
    }

    /// Sets the oldest GPU that portable entries must support. A contract that names an older GPU is compiled
    /// for this GPU. An entry for exactly one generation keeps that generation.
    pub fn arch(mut self, arch: Arch) -> Self {
        self.arch = arch;
        self
    }

    /// `false` enables overflow checks and debug assertions. The kernels are compiled with optimisation in
    /// both cases, because unoptimised device code keeps its register arrays in local memory.
    pub fn release(mut self, release: bool) -> Self {
        self.release = release;
        self
    }

    /// Sets the source lines that the PTX contains. The default is [`DebugInfo::Lines`].
    pub fn debug(mut self, debug: DebugInfo) -> Self {
        self.debug = debug;
        self
    }

    /// Enables cargo features of the device crate.
    pub fn features<S: Into<String>>(mut self, features: impl IntoIterator<Item = S>) -> Self {
        self.features.extend(features.into_iter().map(Into::into));
        self
    }

    /// Adds an argument for LLVM, such as `-inline-threshold=1000`.
    pub fn llvm_arg(mut self, argument: impl Into<String>) -> Self {
        self.llvm_args.push(argument.into());
        self
    }

    /// Adds the launch contract of one entry. Without contracts, `build` writes no launch contract into the
    /// modules. With at least one contract, every kernel of the crate needs one.
    pub fn entry(mut self, contract: Contract) -> Self {
        self.contracts.push(contract);
        self
    }

    /// Adds the launch contracts of several entries.
    pub fn entries(mut self, contracts: impl IntoIterator<Item = Contract>) -> Self {
        self.contracts.extend(contracts);
        self
    }

    /// Builds only the entries `symbols`. Such a build is much faster. Use it while you work on one kernel.
    pub fn only<S: Into<String>>(mut self, symbols: impl IntoIterator<Item = S>) -> Self {
        self.only = Some(symbols.into_iter().map(Into::into).collect());
        self
    }

    /// Also copies every module to `folder`, as `<entry>.ptx`.
    pub fn copy_to(mut self, folder: impl AsRef<Path>) -> Self {
        self.copy_to = Some(folder.as_ref().to_owned());
        self
    }

    /// Sets the build folder. A relative path counts from the current folder, which in a build script is the
    /// package's. The default is `cuda-builder` below `CARGO_TARGET_DIR`, or else below the workspace's
    /// `target`.
    pub fn target_dir(mut self, folder: impl AsRef<Path>) -> Self {
        self.target_dir = Some(folder.as_ref().to_owned());
        self
    }

    /// Sets the number of compilers that run at the same time. The default is one per core.
    pub fn jobs(mut self, jobs: usize) -> Self {
        self.jobs = Some(jobs);
        self
    }

    /// Passes cargo's own output through to standard error.
    pub fn verbose(mut self, verbose: bool) -> Self {
        self.verbose = verbose;
        self
    }

    /// Sets a function that receives the progress. [`build`](Self::build) calls it with the number of
    /// compiled modules and the number of modules to compile. The first call passes 0. If every module is
    /// cached, `build` does not call it. Any thread of `build` may call it.
    pub fn progress(mut self, report: impl Fn(usize, usize) + Send + Sync + 'static) -> Self {
        self.report = Some(Report::new(report));
        self
    }

    /// Sets the targets for which [`build`](Self::build) assembles the modules and checks the rules of
    /// [`gate`](crate::gate). `build` assembles each module for every one of these targets that can run it.
    /// Without targets, `build` needs no ptxas and checks nothing. Kernels with
    /// [`release(false)`](Self::release) break the rules, so their check fails.
    #[cfg(feature = "ptxas")]
    pub fn check_on(mut self, targets: impl IntoIterator<Item = Arch>) -> Self {
        self.check_on.extend(targets);
        self
    }

    /// Compiles the crate and writes one PTX module per entry, for the target of the entry's contract. Also
    /// checks the modules on the targets of [`check_on`](Self::check_on).
    ///
    /// `build` caches modules by content: with unchanged sources, flags and compiler it compiles nothing. The
    /// cache keeps the two newest states of the sources.
    ///
    /// LLVM uses one core, so `build` distributes the entries over several compilers. Each compiler compiles
    /// the entries in the environment variable `CUDA_BUILDER_ENTRIES` (symbols, separated by commas; unset
    /// means all), because `#[kernel]` of `cuda_std` omits all other kernels. If a crate ignores this
    /// environment variable, every compiler compiles the whole crate, and the result is the same.
    ///
    /// # Errors
    /// Returns an [`Error`] if there is no device compiler, the crate does not compile, kernels and contracts
    /// do not match, or a kernel breaks a rule.
    pub fn build(&self) -> Result<Output, Error> {
        let site = self.site()?;
        let (modules, inputs, warnings) = (Vec::new(), Vec::new(), String::new());
        let (started, settings) = (SystemTime::now(), self.settings());
        let mut output = Output { modules, inputs, warnings, started, settings };
        let mut inputs = BTreeSet::new();
        let wanted = self.wanted()?;
        // A build script and a task may compile the same modules at the same time. A build that compiles
        // nothing takes no lock, because its folders may be readable only.
        let compiles = wanted.is_empty() || self.missing(&site, &wanted)? > 0;
        let held = compiles.then(|| site.locked()).transpose()?;
        let alone = if compiles { site.alone()? } else { None };
        let contracted: Vec<_> = self.contracts.iter().map(|c| c.symbol).collect();
        let progress = Progress::new(self.report.clone(), self.missing(&site, &wanted)?);
        let groups = self.groups(&wanted)?.into_iter().map(|(arch, contracts)| {
            let mut group = self.group(&site, arch, &contracted, &progress);
            group.invocation.alone = alone.as_deref();
            (group, contracts)
        });
        let groups: Vec<_> = groups.collect();
        let built = match &groups[..] {
            [(group, contracts)] if contracts.is_empty() => vec![group.build_all()?],
            groups => group::build(groups, self.jobs)?,
        };
        for ((group, _), built) in groups.iter().zip(built) {
            // Crates of one name share the cache, but each crate has its own files.
            let crate_root = cache::hex(&site.crate_root);
            let out = env::var_os("OUT_DIR").map(|out| Path::new(&out).join("ptx").join(&crate_root));
            let ptx: Vec<_> = [group.folder.join("ptx").join(crate_root)].into_iter().chain(out).collect();
            let mut others = built.others.into_iter();
            if let Some(symbol) = others.find(|symbol| !contracted.contains(&symbol.as_str())) {
                return Err(Error::UncontractedEntry { symbol });
            }
            for (contract, text) in built.modules {
                let path = write_module(&ptx, contract.symbol, &text)?;
                if let Some(copies) = &self.copy_to {
                    write_module(slice::from_ref(copies), contract.symbol, &text)?;
                }
                output.modules.push(Module { contract, arch: group.invocation.arch, text, path });
            }
            inputs.extend(built.inputs);
            if output.warnings.is_empty() {
                output.warnings = built.warnings;
            }
        }
        drop(held);
        output.inputs = inputs.into_iter().collect();
        let place = |module: &Module| wanted.iter().position(|c| c.symbol == module.contract.symbol);
        output.modules.sort_by_key(place);
        #[cfg(feature = "ptxas")]
        if !self.check_on.is_empty() {
            let reporter = Reporter::new(&site.workspace, site.kept.join("reports"))?;
            let reports = reporter.report_all(&output.modules, &self.check_on, || {})?;
            gate::check(reports.iter().map(|(module, report)| (&module.contract, report)))?;
        }
        Ok(output)
    }

    /// The runs of the compiler, for each target, in which [`build`](Self::build) with an empty cache
    /// compiles the entries. A kernel's PTX depends a little on the kernels of its run.
    ///
    /// # Errors
    /// The errors that `build` returns before it starts to compile.
    pub fn runs(&self) -> Result<Vec<Vec<Vec<&'static str>>>, Error> {
        let of = |contracts: Vec<&Contract>| {
            let symbols: Vec<_> = contracts.iter().map(|contract| contract.symbol).collect();
            group::deal(&symbols, self.jobs).1
        };
        Ok(self.groups(&self.wanted()?)?.into_values().map(of).collect())
    }

    /// Writes the origin of `output`, a result of [`build`](Self::build) for this crate, beside its archive
    /// in `folder`.
    ///
    /// # Errors
    /// Returns [`Error::Changed`] if a source has changed since the build began, or [`Error::Io`] if a source
    /// cannot be read, or the file cannot be written.
    #[cfg(feature = "archive")]
    pub fn carry(&self, folder: &Path, output: &Output) -> Result<(), Error> {
        let site = self.site()?;
        let of = [&*site.compiler.version, &*output.settings];
        Sources::write(folder, &site.crate_root, of, &output.inputs)?;
        match cache::changed_since(output.started, &output.inputs)? {
            Some(input) => Err(Error::Changed { input: input.clone() }),
            None => Ok(()),
        }
    }

    /// Fills the cache with the modules in the folder `carried`, unless the cache has them. Does nothing if
    /// other sources or other settings than those of this build have made them. The compiler may have been
    /// another one.
    ///
    /// # Errors
    /// Returns an [`Error`] if there is no device compiler, or if the archive is damaged.
    #[cfg(feature = "archive")]
    pub fn adopt(&self, carried: &Path) -> Result<(), Error> {
        let started = SystemTime::now();
        let (site, wanted) = (self.site()?, self.wanted()?);
        let Carried::Current(sources) = Sources::of(carried, &site.crate_root)? else { return Ok(()) };
        if sources.settings != self.settings() || self.missing(&site, &wanted)? == 0 {
            return Ok(());
        }
        let _held = site.locked()?;
        let contracted: Vec<_> = self.contracts.iter().map(|c| c.symbol).collect();
        let silent = Progress::new(None, 0);
        let modules = archive::read_modules(carried)?.into_iter().collect();
        self.groups(&wanted)?.into_iter().try_for_each(|(arch, contracts)| {
            self.group(&site, arch, &contracted, &silent).adopt(
                &contracts,
                (&sources.inputs, started),
                &modules,
            )
        })
    }

    /// A digest of the settings that change modules.
    fn settings(&self) -> String {
        let settings = (self.arch, self.release, self.debug, &self.features, &self.llvm_args);
        format!("{:016x}", cache::digest(format!("{settings:?}").as_bytes()))
    }

    /// Whether every module is cached, so that [`build`](Self::build) would compile nothing.
    ///
    /// # Errors
    /// The errors that `build` returns before it starts to compile.
    pub fn is_kept(&self) -> Result<bool, Error> {
        let (site, wanted) = (self.site()?, self.wanted()?);
        Ok(!wanted.is_empty() && self.missing(&site, &wanted)? == 0)
    }

    /// The number of contracts that `build` would compile.
    fn missing(&self, site: &Site, wanted: &[&Contract]) -> Result<usize, Error> {
        if wanted.is_empty() {
            return Ok(0);
        }
        let contracted: Vec<_> = self.contracts.iter().map(|c| c.symbol).collect();
        let silent = Progress::new(None, 0);
        let count = |(arch, contracts): (Arch, Vec<&Contract>)| {
            self.group(site, arch, &contracted, &silent).missing(&contracts)
        };
        self.groups(wanted)?.into_iter().map(count).sum()
    }

    fn site(&self) -> Result<Site, Error> {
        Site::find(&self.crate_root, self.target_dir.as_deref())
    }

    /// The group of entries for `arch`.
    fn group<'a>(
        &'a self,
        site: &'a Site,
        arch: Arch,
        contracted: &'a [&'static str],
        progress: &'a Progress,
    ) -> Group<'a> {
        let invocation = Invocation {
            compiler: &site.compiler,
            workspace: &site.workspace,
            crate_root: &site.crate_root,
            alone: None,
            package: &site.package,
            arch,
            release: self.release,
            debug: self.debug,
            features: &self.features,
            llvm_args: &self.llvm_args,
            verbose: self.verbose,
        };
        let (folder, compilers) = (site.folder.join(arch.name()), site.compilers.join(arch.compilers()));
        Group { invocation, contracted, folder, compilers, jobs: self.jobs, progress }
    }

    /// The contracts to build. Each symbol occurs once.
    fn wanted(&self) -> Result<Vec<&Contract>, Error> {
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.contracts.iter().find(|c| !seen.insert(c.symbol)) {
            return Err(Error::DuplicateContract { symbol: twice.symbol.to_owned() });
        }
        let Some(only) = &self.only else { return Ok(self.contracts.iter().collect()) };
        let find = |symbol: &String| {
            let found = self.contracts.iter().find(|c| c.symbol == *symbol);
            found.ok_or_else(|| Error::MissingEntry { symbol: symbol.clone() })
        };
        only.iter().map(find).collect()
    }

    /// The contracts, grouped by compilation target. If there are no contracts, one group contains the whole
    /// crate.
    fn groups<'c>(&self, wanted: &[&'c Contract]) -> Result<BTreeMap<Arch, Vec<&'c Contract>>, Error> {
        if wanted.is_empty() {
            return Ok(BTreeMap::from([(self.arch, Vec::new())]));
        }
        let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for &contract in wanted {
            let own = Arch::of(contract.target).ok_or_else(|| Error::UnknownTarget {
                symbol: contract.symbol.to_owned(),
                target: contract.target,
            })?;
            let arch = if matches!(contract.target, Target::From(_)) { own.max(self.arch) } else { own };
            groups.entry(arch).or_default().push(contract);
        }
        Ok(groups)
    }
}
