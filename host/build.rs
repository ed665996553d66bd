//! Gathers the kernels' PTX, compressed, into a table that the library includes. It comes from
//!
//! 1. the folder `FERROFLASH_PTX_DIR`, as `<symbol>.ptx`: for people who work on kernels; entries may be
//!    missing. Empty is unset. Only this build script reads the variable, never the library;
//! 2. `ptx/` beside this file, as `cuda_builder::archive` writes it: a published package, which needs no
//!    device compiler and compresses nothing;
//! 3. `../kernels-gpu`, compiled here: the workspace.
//!
//! Source lines lie apart from code, and only who simulates (feature `sim`) carries them.
use cuda_builder::CudaBuilder;
use cuda_builder::archive::{self, Archive, CODE, LINES, Place};
use std::{env, error::Error, fmt::Write, fs, path::Path, path::PathBuf, process::ExitCode};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    // An `Err` from main is printed for programmers, with its lines escaped.
    let Err(error) = gather() else { return ExitCode::SUCCESS };
    eprintln!("{error}");
    ExitCode::FAILURE
}

fn gather() -> Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FERROFLASH_PTX_DIR");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let package = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let (packaged, kernels) = (package.join("ptx"), package.join("../kernels-gpu"));
    // Empty is unset.
    let ours = env::var_os("FERROFLASH_PTX_DIR").filter(|folder| !folder.is_empty());
    let folder = if let Some(folder) = ours {
        given(Path::new(&folder), &kernels, &out)?
    } else if packaged.is_dir() {
        println!("cargo::rerun-if-changed={}", packaged.display());
        packaged
    } else if kernels.is_dir() {
        built(&kernels, &out)?
    } else {
        return Err(
            "no PTX: neither ptx/ nor ../kernels-gpu is here, and FERROFLASH_PTX_DIR is not set".into()
        );
    };
    let mut table = String::new();
    let code = carried(&folder, CODE, true, &mut table)?;
    let lines = carried(&folder, LINES, env::var_os("CARGO_FEATURE_SIM").is_some(), &mut table)?;
    table.push_str("/// `(symbol, PTX, its source lines)`.\nstatic TABLE: &[(&str, Part, Part)] = &[\n");
    for (symbol, code) in &code {
        let lines = lines.iter().find(|(name, _)| name == symbol).map(|(_, lines)| lines);
        let lines = lines.ok_or_else(|| format!("{}: {symbol} has code and no lines", folder.display()))?;
        writeln!(table, "    ({symbol:?}, {code}, {lines}),")?;
    }
    table.push_str("];\n");
    fs::write(out.join("ptx_table.rs"), table)?;
    if env::var_os("CARGO_FEATURE_CUBINS").is_some() { cubins(&package, &folder, &out) } else { Ok(()) }
}

/// Writes those blocks of an archive that wanted kernels lie in to `table`, if they are `included`, and says
/// of each of these kernels where: its [`Part`](../src/ptx.rs) in Rust.
fn carried(folder: &Path, what: &str, included: bool, table: &mut String) -> Result<Vec<(String, String)>> {
    let mut places = archive::index(folder, what)?;
    places.retain(|place| is_wanted(&place.name));
    let mut blocks: Vec<_> = places.iter().map(|place| place.block).collect();
    blocks.dedup();
    if included {
        writeln!(table, "/// Blocks of compressed texts.\nstatic {}: &[&[u8]] = &[", what.to_uppercase())?;
        for block in &blocks {
            writeln!(table, "    include_bytes!({:?}),", archive::block_file(folder, what, *block))?;
        }
        table.push_str("];\n");
    }
    let number = |block| blocks.iter().take_while(|other| **other != block).count();
    let part =
        |Place { name, block, from, len }| (name, format!("({}, {from}..{})", number(block), from + len));
    Ok(places.into_iter().map(part).collect())
}

/// Whether this build carries the kernel: the lineage's on request alone.
fn is_wanted(symbol: &str) -> bool {
    env::var_os("CARGO_FEATURE_LINEAGE").is_some() || !spec::is_lineage(symbol)
}

fn wanted() -> impl Iterator<Item = spec::Contract> {
    spec::kernels().filter(|kernel| is_wanted(kernel.symbol))
}

/// Gathers machine code for the entries whose PTX is in `ptx`, from `cubins/` beside this file (a published
/// package), or else from what `cargo xtask build-cubin` made, in `FERROFLASH_CUBIN_DIR` or
/// `../target/cubin`.
fn cubins(package: &Path, ptx: &Path, out: &Path) -> Result<()> {
    println!("cargo::rerun-if-env-changed=FERROFLASH_CUBIN_DIR");
    let (packaged, built) = (package.join("cubins"), package.join("../target/cubin"));
    let given = env::var_os("FERROFLASH_CUBIN_DIR").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let is_package = given.is_none() && packaged.is_dir();
    let folder = given.unwrap_or(if is_package { packaged } else { built });
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut table = String::from(
        "/// `(symbol, architecture, compressed cubin)`.\nstatic CUBINS: &[(&str, u32, &[u8])] = &[\n",
    );
    for (symbol, code) in archive::read(ptx, CODE)?.into_iter().filter(|(symbol, _)| is_wanted(symbol)) {
        let kernel = spec::kernels().find(|kernel| kernel.symbol == symbol);
        let kernel = kernel.ok_or_else(|| format!("{} has {symbol}, the table has not", ptx.display()))?;
        // A package was made in one go, and may leave a generation out.
        if !is_package {
            let theirs = fs::read_to_string(folder.join("ptx").join(&symbol).with_extension("ptx"));
            if theirs.map_err(|e| missing(&folder, &symbol, &e))? != code {
                return Err(missing(&folder, &symbol, &"it was made from other PTX than this build carries"));
            }
        }
        // Code for one generation alone lies apart from portable code for it.
        let suffix = if matches!(kernel.target, spec::Target::Exactly(_)) { "a" } else { "" };
        let of = |arch: u32| folder.join(format!("sm_{arch}{suffix}"));
        let carried = |arch: &u32| kernel.target.runs_on(*arch) && (!is_package || of(*arch).is_dir());
        for arch in [80, 86, 89, 90].into_iter().filter(carried) {
            let file = of(arch).join(format!("{symbol}.cubin.lzma"));
            let kept = out.join(format!("{symbol}.sm_{arch}.cubin.lzma"));
            fs::copy(&file, &kept).map_err(|e| missing(&folder, &symbol, &e))?;
            writeln!(table, "    ({symbol:?}, {arch}, include_bytes!({kept:?})),")?;
        }
    }
    table.push_str("];\n");
    Ok(fs::write(out.join("cubin_table.rs"), table)?)
}

fn missing(folder: &Path, symbol: &str, why: &dyn std::fmt::Display) -> Box<dyn Error> {
    format!("feature cubins: {symbol} in {}: {why}; `cargo xtask build-cubin` makes it", folder.display())
        .into()
}

/// Writes code and lines of PTX texts, and says where. Compressed ones are kept where the modules of
/// `kernels` are, for builds with other features.
fn written(texts: &[(&str, String)], kernels: &Path, out: &Path) -> Result<PathBuf> {
    let kept = if kernels.is_dir() { &CudaBuilder::new(kernels).folder() } else { out };
    let folder = out.join("ptx");
    Archive::write_modules(texts, spec::family, &kept.join("lzma"), &folder)?;
    Ok(folder)
}

fn given(folder: &Path, kernels: &Path, out: &Path) -> Result<PathBuf> {
    let mut texts = Vec::new();
    for kernel in wanted() {
        let source = folder.join(kernel.symbol).with_extension("ptx");
        println!("cargo::rerun-if-changed={}", source.display());
        if let Ok(text) = fs::read_to_string(&source) {
            texts.push((kernel.symbol, text));
        }
    }
    let all = wanted().count();
    if texts.len() < all {
        let missing = all - texts.len();
        println!("cargo::warning={missing} of {all} kernels have no PTX in {}", folder.display());
    }
    written(&texts, kernels, out)
}

fn built(kernels: &Path, out: &Path) -> Result<PathBuf> {
    // One recipe, whatever is carried: builds with other features share what was compiled.
    let builder = CudaBuilder::new(kernels).entries(spec::kernels()).features(["lineage"]);
    let output = builder.only(wanted().map(|kernel| kernel.symbol)).build();
    let output = output.map_err(|error| match error {
        cuda_builder::Error::NoDeviceCompiler { .. } => {
            format!("{error}\nIn FerroFlash's workspace, `cargo xtask setup` brings one")
        }
        _ => error.to_string(),
    })?;
    output.emit_rerun_if_changed();
    let texts: Vec<_> =
        output.modules.into_iter().map(|module| (module.contract.symbol, module.text)).collect();
    written(&texts, kernels, out)
}
