//! Gathers the kernels' PTX, compressed, into a table that the library includes. It comes from
//!
//! 1. the folder `FERROFLASH_PTX_DIR`, as `<symbol>.ptx`: for people who work on kernels; entries may be
//!    missing;
//! 2. `ptx/` beside this file, as `<symbol>.ptx.lzma` and `<symbol>.lines.lzma`: a published package, which
//!    needs no device compiler and compresses nothing;
//! 3. `../kernels-gpu`, compiled here: the workspace.
//!
//! Source lines lie apart from code, and only who simulates (feature `sim`) carries them.
use cuda_builder::{CudaBuilder, lzma};
use spec::Contract;
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
    let files = if let Some(folder) = env::var_os("FERROFLASH_PTX_DIR") {
        given(Path::new(&folder), &kernels, &out)?
    } else if packaged.is_dir() {
        carried(&packaged)?
    } else if kernels.is_dir() {
        built(&kernels, &out)?
    } else {
        return Err(
            "no PTX: neither ptx/ nor ../kernels-gpu is here, and FERROFLASH_PTX_DIR is not set".into()
        );
    };
    let mut table = String::from(
        "/// `(symbol, compressed PTX, its compressed source lines)`.\n\
         static TABLE: &[(&str, &[u8], &[u8])] = &[\n",
    );
    let simulates = env::var_os("CARGO_FEATURE_SIM").is_some();
    for Kernel { kernel, ptx, lines } in &files {
        let symbol = kernel.symbol;
        let lines = if simulates { format!("include_bytes!({lines:?})") } else { "&[]".into() };
        writeln!(table, "    ({symbol:?}, include_bytes!({ptx:?}), {lines}),")?;
    }
    table.push_str("];\n");
    fs::write(out.join("ptx_table.rs"), table)?;
    if env::var_os("CARGO_FEATURE_CUBINS").is_some() { cubins(&package, &files, &out) } else { Ok(()) }
}

/// Gathers machine code for the entries in `files`, from `cubins/` beside this file (a published package), or
/// else from what `cargo xtask build-cubin` made, in `FERROFLASH_CUBIN_DIR` or `../target/cubin`.
fn cubins(package: &Path, files: &[Kernel], out: &Path) -> Result<()> {
    println!("cargo::rerun-if-env-changed=FERROFLASH_CUBIN_DIR");
    let (packaged, built) = (package.join("cubins"), package.join("../target/cubin"));
    let given = env::var_os("FERROFLASH_CUBIN_DIR").map(PathBuf::from);
    let is_package = given.is_none() && packaged.is_dir();
    let folder = given.unwrap_or(if is_package { packaged } else { built });
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut table = String::from(
        "/// `(symbol, architecture, compressed cubin)`.\nstatic CUBINS: &[(&str, u32, &[u8])] = &[\n",
    );
    for Kernel { kernel, ptx, .. } in files {
        let symbol = kernel.symbol;
        // A package was made in one go, and may leave a generation out.
        if !is_package {
            let theirs = fs::read(folder.join("ptx").join(format!("{symbol}.ptx.lzma")));
            if theirs.map_err(|e| missing(&folder, symbol, &e))? != fs::read(ptx)? {
                return Err(missing(&folder, symbol, &"it was made from other PTX than this build carries"));
            }
        }
        let carried = |arch: &u32| {
            kernel.target.runs_on(*arch) && (!is_package || folder.join(format!("sm_{arch}")).is_dir())
        };
        for arch in [80, 86, 89, 90].into_iter().filter(carried) {
            let file = folder.join(format!("sm_{arch}")).join(format!("{symbol}.cubin.lzma"));
            let kept = out.join(format!("{symbol}.sm_{arch}.cubin.lzma"));
            fs::copy(&file, &kept).map_err(|e| missing(&folder, symbol, &e))?;
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

/// Where a kernel's compressed parts lie.
struct Kernel {
    kernel: Contract,
    ptx: PathBuf,
    lines: PathBuf,
}

impl Kernel {
    fn below(folder: &Path, kernel: Contract) -> Self {
        let file = |part| folder.join(format!("{}.{part}.lzma", kernel.symbol));
        Self { kernel, ptx: file("ptx"), lines: file("lines") }
    }
}

/// Writes the parts of PTX texts. Compressed ones are kept where the modules of `kernels` are, for builds
/// with other features.
fn written(texts: &[(Contract, String)], kernels: &Path, out: &Path) -> Result<Vec<Kernel>> {
    let kept = if kernels.is_dir() { &CudaBuilder::new(kernels).folder() } else { out };
    let parts: Vec<_> = texts.iter().flat_map(|(kernel, text)| lzma::parts(kernel.symbol, text)).collect();
    for ((name, _), packed) in parts.iter().zip(lzma::compress_all(&kept.join("lzma"), &parts)?) {
        fs::write(out.join(format!("{name}.lzma")), packed)?;
    }
    Ok(texts.iter().map(|(kernel, _)| Kernel::below(out, *kernel)).collect())
}

fn given(folder: &Path, kernels: &Path, out: &Path) -> Result<Vec<Kernel>> {
    let mut texts = Vec::new();
    for kernel in spec::kernels() {
        let source = folder.join(kernel.symbol).with_extension("ptx");
        println!("cargo::rerun-if-changed={}", source.display());
        if let Ok(text) = fs::read_to_string(&source) {
            texts.push((kernel, text));
        }
    }
    let all = spec::kernels().count();
    if texts.len() < all {
        let missing = all - texts.len();
        println!("cargo::warning={missing} of {all} kernels have no PTX in {}", folder.display());
    }
    written(&texts, kernels, out)
}

fn carried(folder: &Path) -> Result<Vec<Kernel>> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let kernel = |kernel: Contract| {
        let kernel = Kernel::below(folder, kernel);
        if let Some(missing) = [&kernel.ptx, &kernel.lines].into_iter().find(|file| !file.is_file()) {
            return Err(format!("{} is missing", missing.display()).into());
        }
        Ok(kernel)
    };
    spec::kernels().map(kernel).collect()
}

fn built(kernels: &Path, out: &Path) -> Result<Vec<Kernel>> {
    let lineage = env::var_os("CARGO_FEATURE_LINEAGE").map(|_| "lineage");
    let output = CudaBuilder::new(kernels).entries(spec::kernels()).features(lineage).build();
    let output = output.map_err(|error| match error {
        cuda_builder::Error::NoDeviceCompiler { .. } => {
            format!("{error}\nIn FerroFlash's workspace, `cargo xtask setup` brings one")
        }
        _ => error.to_string(),
    })?;
    output.emit_rerun_if_changed();
    let texts: Vec<_> = spec::kernels().zip(output.modules.into_iter().map(|module| module.text)).collect();
    written(&texts, kernels, out)
}
