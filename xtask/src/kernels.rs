//! Tasks that compile kernels: `cargo xtask build-ptx` and `build-cubin`, and functions that other tasks use.

pub mod carried;
pub mod kept;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use compression::lzma;
use cuda_builder::gate::{self, Rule};
use cuda_builder::ptxas::Assembler;
use cuda_builder::report::{EntryReport, Reporter};
use cuda_builder::{Arch, CudaBuilder, Module, Output, lines};

use crate::process::{Result, bar};
use crate::setup;

/// The default targets. On each target, every kernel must assemble and keep the rules.
pub const TARGETS: [Arch; 4] = [Arch::Sm80, Arch::Sm89, Arch::Sm90, Arch::Sm90a];

/// The targets for which machine code exists.
pub const CUBIN_TARGETS: [Arch; 5] = [Arch::Sm80, Arch::Sm86, Arch::Sm89, Arch::Sm90, Arch::Sm90a];

/// The features with which `kernels-gpu` has all kernels of the table.
const FEATURES: [&str; 2] = ["lineage", "training"];

/// What to build
#[derive(Args)]
pub struct Build {
    /// The PTX's target; sm_80 runs on every GPU since the A100
    #[arg(long, default_value = "sm_80")]
    pub arch: Arch,
    /// Copy every module into this folder
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Build only the entries whose symbol contains this text; may be repeated. With --crate, this option
    /// selects entries after the build
    #[arg(long = "entry", value_name = "TEXT")]
    pub entries: Vec<String>,
    /// Build the device crate in this folder instead of kernels-gpu, such as one with masks and scores of
    /// your own. Its kernels get no launch contract: threads and dynamic shared memory are unknown
    #[arg(long = "crate", value_name = "FOLDER")]
    pub device_crate: Option<PathBuf>,
    /// An argument for LLVM, such as -inline-threshold=1000; may be repeated
    #[arg(long = "llvm-arg", value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub llvm_args: Vec<String>,
    /// Build with prints and assertions: bounds of tiles, overflow. The kernels are slow, break the rules,
    /// and are never shipped
    #[arg(long)]
    pub debug_kernels: bool,
    /// Also assemble Hopper's kernels with ptxas of other CUDA versions, and check their descriptors
    #[arg(long)]
    pub every_ptxas: bool,
    /// Show cargo's output
    #[arg(long, short)]
    pub verbose: bool,
}

impl Build {
    /// Every entry, for the oldest target, as in a library.
    pub fn all() -> Self {
        Self {
            arch: Arch::Sm80,
            out: None,
            entries: Vec::new(),
            device_crate: None,
            llvm_args: Vec::new(),
            debug_kernels: false,
            every_ptxas: false,
            verbose: false,
        }
    }

    /// Whether the build includes this entry.
    fn asks(&self, symbol: &str) -> bool {
        self.entries.is_empty() || self.entries.iter().any(|text| symbol.contains(text.as_str()))
    }

    fn asks_none(&self) -> Box<dyn std::error::Error> {
        format!("no entry's symbol contains {}", self.entries.join(" or ")).into()
    }
}

/// `cargo xtask build-ptx`: builds the modules, and checks the rules on their targets.
pub fn build_ptx(root: &Path, build: &Build) -> Result {
    if build.debug_kernels {
        let output = ptx(root, build)?;
        let folder =
            build.out.as_deref().or(output.modules.first().and_then(|m| m.path.parent())).unwrap_or(root);
        println!("{} modules with prints and assertions in {}", output.modules.len(), folder.display());
        return Ok(());
    }
    let targets = targets_of(build.arch);
    setup::cuda_tools(root)?;
    let checked = builder(root, build)?.check_on(targets.iter().copied());
    let what = format!("compiling the kernels for {}, and checking them", build.arch);
    let output = asked(build, compile(checked, &what)?)?;
    if build.every_ptxas {
        hold_descriptors(root, &of_hopper(&output.modules).cloned().collect::<Vec<_>>())?;
    }
    let bytes: usize = output.modules.iter().map(|m| m.text.len()).sum();
    let folder = build.out.as_deref().or(output.modules.first().and_then(|m| m.path.parent()));
    let is_meant = |target: &&Arch| output.modules.iter().any(|m| m.arch.assembles_for(**target));
    let names: Vec<_> = targets.iter().filter(is_meant).map(|t| t.name()).collect();
    println!(
        "{} modules for {} ({:.1} MB), no rule broken on {}, in {}",
        output.modules.len(),
        build.arch,
        bytes as f64 / 1e6,
        names.join(", "),
        folder.unwrap_or(root).display()
    );
    Ok(())
}

/// `cargo xtask build-cubin`: compiles the sm_80 PTX to machine code for exactly these GPUs.
pub fn build_cubin(root: &Path, build: &Build, targets: &[Arch]) -> Result {
    let output = ptx(root, build)?;
    if targets.contains(&Arch::Sm90a) {
        let hopper: Vec<_> = of_hopper(&output.modules).cloned().collect();
        gate::check(reports(root, &hopper, &[Arch::Sm90a])?.iter().map(|(m, r)| (&m.contract, r)))?;
    }
    let modules: Vec<_> = output.modules.iter().collect();
    cubins(root, &modules, targets, &build.out.clone().unwrap_or_else(|| root.join("target/cubin")))
}

/// Writes the machine code of `modules`, and the PTX from which it was made, to folders below `out`. The
/// machine code is written uncompressed, and compressed in the form that the feature `cubins` of `ferroflash`
/// reads.
pub fn cubins(root: &Path, modules: &[&Module], targets: &[Arch], out: &Path) -> Result {
    setup::cuda_tools(root)?;
    let assembler = Assembler::locate(root)?;
    let ptx = out.join("ptx");
    fs::create_dir_all(&ptx)?;
    for &target in targets {
        fs::create_dir_all(out.join(target.name()))?;
    }
    let progress = bar("assembling", modules.len());
    let (mut bytes, mut count) = (0, 0);
    for module in modules {
        // This function removes the source lines, because they would be five sixths of a cubin.
        let (symbol, (code, _)) = (module.contract.symbol, lines::split(&module.text));
        let packed = |target: Arch| out.join(target.name()).join(format!("{symbol}.cubin.lzma"));
        let bare = ptx.join(format!("{symbol}.ptx"));
        if !fs::read(&bare).is_ok_and(|old| old == code.as_bytes()) {
            // Machine code of older PTX is removed first, including machine code for other targets.
            for stale in CUBIN_TARGETS.map(packed).into_iter().filter(|file| file.is_file()) {
                fs::remove_file(stale)?;
            }
            fs::write(&bare, code)?;
        }
        for &target in targets.iter().filter(|target| module.arch.assembles_for(**target)) {
            let cubin = out.join(target.name()).join(format!("{symbol}.cubin"));
            let packed = packed(target);
            if !kept::is_whole(&packed) {
                assembler.assemble(symbol, target, &bare, &cubin)?;
                kept::write(&packed, &lzma::compress(&fs::read(&cubin)?)?)?;
            }
            bytes += fs::metadata(&packed)?.len();
            count += 1;
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    println!("{count} cubins in {}, {:.1} MB compressed", out.display(), bytes as f64 / 1e6);
    Ok(())
}

/// The PTX modules of every entry in the table, or of the requested entries. Compiles these modules if
/// anything has changed.
pub fn ptx(root: &Path, build: &Build) -> Result<Output> {
    asked(build, compile(builder(root, build)?, &format!("compiling the kernels for {}", build.arch))?)
}

/// Whether every kernel is in the cache. Installs the device compiler if it is missing.
pub fn are_kept(root: &Path) -> Result<bool> {
    Ok(builder(root, &Build::all())?.is_kept()?)
}

/// Writes the modules of these kernels to `folder`, and removes all other modules, for a library that has
/// only these kernels.
pub fn some<'a>(
    root: &Path,
    symbols: impl Iterator<Item = &'a str> + Clone,
    folder: &Path,
) -> Result<Output> {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if !symbols.clone().any(|symbol| path.file_stem().is_some_and(|stem| stem == symbol)) {
            fs::remove_file(path)?;
        }
    }
    let builder = builder(root, &Build::all())?.only(symbols).copy_to(folder);
    compile(builder, "compiling kernels")
}

/// The builder of a device crate, without contracts.
fn own(root: &Path, build: &Build) -> Result<CudaBuilder> {
    setup::device_compiler(root)?;
    let mut builder = CudaBuilder::new(build.device_crate.as_ref().unwrap_or(&root.join("kernels-gpu")))
        .target_dir(root.join("target/cuda-builder"))
        .arch(build.arch)
        .verbose(build.verbose);
    if build.debug_kernels {
        builder = builder.release(false).target_dir(root.join("target/cuda-builder-debug"));
    }
    for argument in &build.llvm_args {
        builder = builder.llvm_arg(argument);
    }
    Ok(builder)
}

fn builder(root: &Path, build: &Build) -> Result<CudaBuilder> {
    let mut builder = own(root, build)?;
    if build.device_crate.is_none() {
        builder = builder.entries(spec::kernels()).features(FEATURES);
        builder.adopt(&root.join(carried::FOLDER))?;
    }
    if !build.entries.is_empty() && build.device_crate.is_none() {
        let symbols = spec::kernels().map(|kernel| kernel.symbol);
        let asked: Vec<_> = symbols.filter(|symbol| build.asks(symbol)).collect();
        if asked.is_empty() {
            return Err(build.asks_none());
        }
        builder = builder.only(asked);
    }
    if let Some(out) = &build.out {
        builder = builder.copy_to(out);
    }
    Ok(builder)
}

/// The requested entries of `output`. Only the build of another crate has more: its symbols are unknown
/// before the build.
fn asked(build: &Build, mut output: Output) -> Result<Output> {
    output.modules.retain(|module| build.asks(module.contract.symbol));
    if output.modules.is_empty() && !build.entries.is_empty() {
        return Err(build.asks_none());
    }
    Ok(output)
}

fn compile(builder: CudaBuilder, what: &str) -> Result<Output> {
    let progress = bar(what, 0);
    let shown = progress.clone();
    let output = builder
        .progress(move |made, of| {
            shown.set_length(of as u64);
            shown.set_position(made as u64);
            if shown.is_hidden() {
                println!("compiling kernels: {made} of {of}");
            }
        })
        .build()?;
    progress.finish_and_clear();
    if !output.warnings.is_empty() {
        eprintln!("{}", output.warnings);
    }
    Ok(output)
}

/// The resources of every module on every target.
pub fn reports<'m>(
    root: &Path,
    modules: &'m [Module],
    targets: &[Arch],
) -> Result<Vec<(&'m Module, EntryReport)>> {
    setup::cuda_tools(root)?;
    let reporter = Reporter::new(root, cache(root))?;
    let pairs = modules.iter().flat_map(|m| targets.iter().filter(|&&t| m.arch.assembles_for(t)));
    let progress = bar("assembling", pairs.count());
    let reports = reporter.report_all(modules, targets, || progress.inc(1))?;
    progress.finish_and_clear();
    Ok(reports)
}

/// Checks the descriptors of Hopper's kernels in the machine code of every [`setup::other_assemblers`]. The
/// other rules, such as no spills, hold only for the version that makes our machine code.
pub fn hold_descriptors(root: &Path, modules: &[Module]) -> Result {
    for (version, ptxas) in setup::other_assemblers(root)? {
        let assembler = Assembler::locate(root)?.with_ptxas(&ptxas)?;
        let progress = bar(&format!("assembling with ptxas {version}"), modules.len());
        let reports =
            Reporter::of(assembler, cache(root))?.report_all(modules, &[Arch::Sm90a], || progress.inc(1))?;
        progress.finish_and_clear();
        let breaches = reports.iter().flat_map(|(m, report)| gate::breaches(&m.contract, report));
        let is_wrong = |rule: &Rule| matches!(rule, Rule::LostDescriptors { .. } | Rule::Unread { .. });
        if let Some(breach) = breaches.into_iter().find(|breach| is_wrong(&breach.rule)) {
            return Err(format!("with ptxas {version}, {breach}").into());
        }
    }
    Ok(())
}

/// The kernels that were compiled for Hopper.
fn of_hopper(modules: &[Module]) -> impl Iterator<Item = &Module> {
    modules.iter().filter(|module| module.arch == Arch::Sm90a)
}

/// Hopper's kernels with different products: one kernel of each family and sequence of products. The other
/// kernels have another mask or dtype around equal products.
pub fn with_different_products(modules: &[Module]) -> Vec<Module> {
    let mut known = BTreeSet::new();
    let key = |module: &Module| {
        let family = module.contract.symbol.split("_d").next().unwrap_or_default().replace("bf16", "f16");
        let lines = module.text.lines().filter_map(|line| line.split_once("wgmma.mma_async.sync.aligned."));
        let shapes = lines.map(|(_, shape)| shape.split('.').next().unwrap_or_default().to_owned());
        (family, shapes.collect::<Vec<_>>())
    };
    of_hopper(modules).filter(|module| known.insert(key(module))).cloned().collect()
}

/// Compiles all kernels, and takes none from a cache or from those that the checkout carries.
pub fn anew(root: &Path) -> Result<Output> {
    remove(&root.join("target/cuda-builder/ferroflash-kernels-gpu"))?;
    let builder = own(root, &Build::all())?;
    compile(
        builder.entries(spec::kernels()).features(FEATURES).jobs(carried::COMPILERS),
        "compiling all kernels",
    )
}

/// Removes a folder, if it exists.
pub fn remove(folder: &Path) -> Result {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// The folder of cached reports. The builder also uses this folder, so that no module is assembled twice.
pub fn cache(root: &Path) -> PathBuf {
    root.join("target/cuda-builder/reports")
}

/// The targets for which the PTX of `arch` is assembled.
pub fn targets_of(arch: Arch) -> Vec<Arch> {
    TARGETS.into_iter().filter(|&t| t >= arch).collect()
}
