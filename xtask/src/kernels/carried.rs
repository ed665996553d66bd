//! The compiled kernels that the checkout carries in `host/ptx`. With them, a clone builds in a minute, and
//! without a device compiler. `cargo xtask bless` writes them, and ci compiles a part of them again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cuda_builder::archive::{self, Archive, CODE};
use cuda_builder::sources::{Carried, Sources};
use cuda_builder::toolchain::DeviceCompiler;
use cuda_builder::{CudaBuilder, Module, Output};

use super::{FEATURES, compile};
use crate::kernels;
use crate::process::{Result, in_ci};

/// The archive's folder. The library's build script embeds it while its sources are unchanged.
pub const FOLDER: &str = "host/ptx";

/// Number of compilers that compile the carried kernels at once. With other numbers, other kernels would
/// share a run of the compiler, and a kernel's PTX depends a little on the kernels of its run.
pub const COMPILERS: usize = 2;

/// Writes the modules of `output` instead of those that the checkout carries.
pub fn write(root: &Path, output: &Output) -> Result {
    let folder = root.join(FOLDER);
    kernels::remove(&folder)?;
    let modules: Vec<_> = output.modules.iter().map(|m| (m.contract.symbol, m.text.clone())).collect();
    Archive::write_modules(&modules, spec::family, &root.join("target/cuda-builder/lzma"), &folder)?;
    Ok(builder(root).entries(spec::kernels()).carry(&folder, output)?)
}

/// The builder of the carried kernels.
fn builder(root: &Path) -> CudaBuilder {
    let builder = CudaBuilder::new(root.join("kernels-gpu")).target_dir(root.join("target/cuda-builder"));
    builder.features(FEATURES).jobs(COMPILERS)
}

/// The archive's folder.
///
/// # Errors
/// Returns an error if a source has changed since the archive was written.
pub fn folder(root: &Path) -> Result<PathBuf> {
    sources(root).map(|_| root.join(FOLDER))
}

fn sources(root: &Path) -> Result<Sources> {
    let source = match Sources::of(&root.join(FOLDER), &root.join("kernels-gpu"))? {
        Carried::Current(sources) => return Ok(sources),
        Carried::Stale(source) => format!("{source} has changed since it was compiled"),
        Carried::Nothing => "it is missing".to_owned(),
    };
    Err(format!("{FOLDER}: {source}; `cargo xtask bless` makes it anew").into())
}

/// Compiles two of the compiler's runs for each target, a quarter of the kernels, and compares them with
/// `carried`, all of the archive's. Other sources lead to other runs. A kernel's PTX depends a little on the
/// kernels of its run, so the runs are whole.
///
/// # Errors
/// Returns an error if the archive does not belong to these sources, a module differs, or rustc has warnings.
pub fn compare(root: &Path, carried: &Output) -> Result {
    let (sources, compiler) = (sources(root)?, DeviceCompiler::locate(root)?.version);
    if sources.compiler != compiler {
        let why =
            format!("{FOLDER} was compiled by {}, and this device compiler is {compiler}", sources.compiler);
        if in_ci() {
            return Err(format!(
                "{why}: set FERROFLASH_DEVICE_RUSTC to the former, or run `cargo xtask bless`"
            )
            .into());
        }
        eprintln!("NOTE: NOT COMPARED: {why}");
        return Ok(());
    }
    let runs = builder(root).entries(spec::kernels()).runs()?;
    let drawn: BTreeSet<_> = runs.iter().flat_map(|runs| draw(runs, sources.number())).flatten().collect();
    let drawn = spec::kernels().filter(|kernel| drawn.contains(&kernel.symbol));
    let output = compile(builder(root).entries(drawn), "compiling a part of the carried kernels")?;
    if !output.warnings.is_empty() {
        return Err("the device crates compile with warnings".into());
    }
    let other = differing(&carried.modules, &output.modules);
    let [made, all] = [&output, carried].map(|output| output.modules.len());
    println!("compiled {made} of {all} carried kernels; {} differ", other.len());
    let remedy = "`cargo xtask bless` writes today's";
    let wrong = || format!("{FOLDER} has other modules than its sources: {}; {remedy}", other.join(", "));
    if other.is_empty() { Ok(()) } else { Err(wrong().into()) }
}

/// The symbols of the modules in `made` that `carried` lacks, or has with another text.
fn differing(carried: &[Module], made: &[Module]) -> Vec<&'static str> {
    let texts: BTreeMap<_, _> = carried.iter().map(|m| (m.contract.symbol, &m.text)).collect();
    let differs = |m: &&Module| texts.get(m.contract.symbol) != Some(&&m.text);
    made.iter().filter(differs).map(|m| m.contract.symbol).collect()
}

/// Two neighbours among the runs for a target, by a number. The builder divides the kernels of both into the
/// same two runs.
fn draw<'r>(runs: &'r [Vec<&'static str>], number: u64) -> impl Iterator<Item = &'r Vec<&'static str>> {
    let pairs = runs.len().div_ceil(COMPILERS).max(1) as u64;
    runs.iter().skip(COMPILERS * (number % pairs) as usize).take(COMPILERS)
}

/// Number of compressed bytes of the kernels that a library embeds with a feature: `None` stands for the
/// kernels of every library.
pub fn embedded(root: &Path, feature: Option<&str>) -> Result<u64> {
    let folder = folder(root)?;
    let places = archive::index(&folder, CODE)?;
    let users = places.iter().filter(|place| spec::feature_of(&place.name) == feature);
    let blocks: BTreeSet<_> = users.map(|place| place.block).collect();
    blocks.iter().map(|n| Ok(fs::metadata(archive::block_file(&folder, CODE, *n))?.len())).sum()
}

#[cfg(test)]
mod tests {
    use cuda_builder::{Arch, Contract};

    use super::*;

    #[test]
    fn a_changed_byte_and_a_missing_module_differ() {
        let module = |symbol, text: &str| {
            let contract = Contract::new(symbol, 32);
            Module { contract, arch: Arch::Sm80, text: text.to_owned(), path: "a.ptx".into() }
        };
        let made = [module("one", "add"), module("two", "mul"), module("three", "sub")];
        assert_eq!(differing(&[module("one", "add"), module("two", "mu1")], &made), ["two", "three"]);
        assert!(differing(&made, &made[1..]).is_empty());
    }

    #[test]
    fn the_builder_divides_two_runs_as_it_has_divided_all() {
        let builder = || builder(Path::new(""));
        let all = builder().entries(spec::kernels()).runs().unwrap();
        for number in 0..20 {
            let expected: Vec<Vec<_>> =
                all.iter().map(|runs| draw(runs, number).cloned().collect()).collect();
            let drawn: BTreeSet<_> = expected.iter().flatten().flatten().collect();
            let some = builder().entries(spec::kernels().filter(|kernel| drawn.contains(&kernel.symbol)));
            assert_eq!(some.runs().unwrap(), expected, "{number}");
        }
    }
}
