//! Gathers the kernels' PTX into a table that the library includes. Without the feature `kernels`, the
//! table has only the kernels that the backward pass of a caller's kernels needs (feature `training`). The
//! PTX comes from the first of these sources that exists:
//!
//! 1. The folder that `FERROFLASH_PTX_DIR` names, for kernel development. The folder has files
//!    `<symbol>.ptx`, and some kernels may be missing. If this environment variable is empty, it counts as
//!    unset. Only this build script reads the environment variable; the library never does.
//! 2. The folder `ptx/` beside this file, which `cargo xtask bless` wrote. Packages and checkouts have this
//!    folder, so that they need no device compiler. In a checkout, this script does not use the folder if a
//!    source of the kernels has changed.
//! 3. The crate `../kernels-gpu` of a checkout, which this script compiles. The modules are cached in the
//!    checkout's `target/cuda-builder`, so all crates that depend on this checkout share them.
//!
//! | build | the PTX is embedded as |
//! |---|---|
//! | of the folder `ptx/` | LZMA |
//! | `FERROFLASH_COMPRESS=1` | LZMA, which this script compresses |
//! | `FERROFLASH_COMPRESS=code` | LZMA without source lines, also for the simulator |
//! | otherwise | text, because cargo builds this script without optimisation and LZMA would take minutes |
//!
//! Source lines are embedded only with the feature `sim`, for the simulator.
use cuda_builder::archive::{self, Archive, CODE, LINES, Place};
use cuda_builder::sources::{Carried, Sources};
use cuda_builder::{CudaBuilder, DebugInfo, lines};
use std::time::{Duration, Instant};
use std::{env, error::Error, fmt::Write, fs, io::Write as _, path::Path, path::PathBuf, process::ExitCode};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The environment variable that makes this script compress the embedded kernels, if set and not empty.
const COMPRESS: &str = "FERROFLASH_COMPRESS";

/// The blocks of source lines of a table that has none, or whose texts have their lines.
const NO_LINES: &str = "/// None.\nstatic LINES: &[Block<'_>] = &[];\n";

/// The kernels' modules.
enum Modules {
    /// Compressed modules in this folder.
    Archive(PathBuf),
    /// The symbol and the PTX of each kernel.
    Texts(Vec<(&'static str, String)>),
}

fn main() -> ExitCode {
    // Rust prints an `Err` from `main` with `Debug`, which escapes line ends.
    let Err(error) = gather() else { return ExitCode::SUCCESS };
    eprintln!("{error}");
    ExitCode::FAILURE
}

fn gather() -> Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FERROFLASH_PTX_DIR");
    println!("cargo::rerun-if-env-changed={COMPRESS}");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let package = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let (carried, kernels) = (package.join("ptx"), package.join("../kernels-gpu"));
    let modules = if wanted().next().is_none() {
        Modules::Texts(vec![])
    } else if let Some(folder) = set("FERROFLASH_PTX_DIR") {
        Modules::Texts(given(&folder)?)
    } else if carried.is_dir() && is_current(&carried, &kernels)? {
        Modules::Archive(carried)
    } else if kernels.is_dir() {
        Modules::Texts(built(&kernels, &out)?)
    } else {
        return Err("no PTX: ptx/ and ../kernels-gpu are missing, and FERROFLASH_PTX_DIR is not set".into());
    };
    let modules = match modules {
        Modules::Texts(texts) if set(COMPRESS).is_some() => {
            let (kept, folder) = (kept(&package, &out), out.join("ptx"));
            Archive::write_modules(&texts, spec::family, &kept.join("lzma"), &folder)?;
            Modules::Archive(folder)
        }
        modules => modules,
    };
    let table = match &modules {
        Modules::Archive(folder) => packed(folder)?,
        Modules::Texts(texts) => plain(texts, &out)?,
    };
    fs::write(out.join("ptx_table.rs"), table)?;
    if env::var_os("CARGO_FEATURE_CUBINS").is_none() {
        return Ok(());
    }
    let codes = match modules {
        Modules::Archive(folder) => archive::read_code(&folder)?,
        Modules::Texts(texts) => {
            texts.into_iter().map(|(symbol, text)| (symbol.to_owned(), lines::split(&text).0)).collect()
        }
    };
    cubins(&package, codes, &out)
}

/// Returns whether the modules in `carried` come from the sources of the crate in `kernels`. A package has no
/// such crate.
fn is_current(carried: &Path, kernels: &Path) -> Result<bool> {
    println!("cargo::rerun-if-changed={}", carried.display());
    if !kernels.is_dir() {
        let places = archive::index(carried, CODE)?;
        let lacks = |kernel: &spec::Contract| places.iter().all(|place| place.name != kernel.symbol);
        return match wanted().find(lacks) {
            Some(kernel) => Err(format!("{}: {} is missing", carried.display(), kernel.symbol).into()),
            None => Ok(true),
        };
    }
    match Sources::of(carried, kernels)? {
        Carried::Current(sources) => {
            sources.inputs.iter().for_each(|source| println!("cargo::rerun-if-changed={}", source.display()));
            Ok(true)
        }
        Carried::Stale(source) => {
            let remedy =
                "compiling all kernels takes 25 minutes of processor time; undo the change to use host/ptx";
            println!("cargo::warning={source} has changed since host/ptx was compiled: {remedy}");
            Ok(false)
        }
        Carried::Nothing => Ok(false),
    }
}

/// Returns the value of an environment variable, or `None` if it is unset or empty.
fn set(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Returns whether this build has the simulator. Such a build also embeds source lines.
fn simulates() -> bool {
    env::var_os("CARGO_FEATURE_SIM").is_some()
}

/// Returns the table of kernels in an archive's blocks.
fn packed(folder: &Path) -> Result<String> {
    let mut table = String::new();
    let code = carried(folder, CODE, &mut table)?;
    let omits = set(COMPRESS).is_some_and(|value| value == Path::new("code"));
    let lines = if simulates() && !omits { carried(folder, LINES, &mut table)? } else { Vec::new() };
    if simulates() && omits {
        table.push_str(NO_LINES);
    }
    let mut rows = Vec::new();
    for (symbol, code) in code {
        let lines = lines.iter().find(|(name, _)| *name == symbol);
        if simulates() && !omits && lines.is_none() {
            return Err(format!("{}: {symbol} has code but no source lines", folder.display()).into());
        }
        rows.push((symbol, code, lines.map(|(_, lines)| lines.clone())));
    }
    finished(table, rows)
}

/// Returns the table of kernels that are embedded as plain text.
fn plain(texts: &[(&str, String)], out: &Path) -> Result<String> {
    let folder = out.join("ptx");
    fs::create_dir_all(&folder)?;
    let mut table = String::new();
    let mut rows = Vec::new();
    writeln!(table, "/// Blocks of texts.\nstatic {}: &[Block<'_>] = &[", CODE.to_uppercase())?;
    for (number, (symbol, text)) in texts.iter().enumerate() {
        let code = if simulates() { None } else { Some(lines::split(text).0) };
        let (text, file) = (code.as_ref().unwrap_or(text), folder.join(symbol).with_extension("ptx"));
        fs::write(&file, text)?;
        writeln!(table, "    Block::Text(include_bytes!({file:?})),")?;
        rows.push(((*symbol).to_owned(), format!("({number}, 0..{})", text.len()), None));
    }
    table.push_str("];\n");
    if simulates() {
        table.push_str(NO_LINES);
    }
    finished(table, rows)
}

/// Appends the list of kernels to `table`.
fn finished(mut table: String, rows: Vec<(String, String, Option<String>)>) -> Result<String> {
    table.push_str(
        "/// `(symbol, PTX, its source lines)`.\nstatic TABLE: &[(&str, Part, Option<Part>)] = &[\n",
    );
    for (symbol, code, lines) in rows {
        let lines = lines.map_or("None".to_owned(), |lines| format!("Some({lines})"));
        writeln!(table, "    ({symbol:?}, {code}, {lines}),")?;
    }
    table.push_str("];\n");
    Ok(table)
}

/// Writes the archive's blocks with wanted kernels to `table`. Returns each of these kernels with its
/// [`Part`](../src/ptx.rs), as Rust text.
fn carried(folder: &Path, what: &str, table: &mut String) -> Result<Vec<(String, String)>> {
    let mut places = archive::index(folder, what)?;
    places.retain(|place| is_wanted(&place.name));
    let mut blocks: Vec<_> = places.iter().map(|place| place.block).collect();
    blocks.dedup();
    let kind = if what == CODE { "Code" } else { "Lines" };
    writeln!(table, "/// Blocks of compressed texts.\nstatic {}: &[Block<'_>] = &[", what.to_uppercase())?;
    for block in &blocks {
        let file = archive::block_file(folder, what, *block);
        writeln!(table, "    Block::{kind}(include_bytes!({file:?})),")?;
    }
    table.push_str("];\n");
    let number = |block| blocks.iter().take_while(|other| **other != block).count();
    let part =
        |Place { name, block, from, len }| (name, format!("({}, {from}..{})", number(block), from + len));
    Ok(places.into_iter().map(part).collect())
}

/// Returns whether this build has the feature.
fn is_on(feature: &str) -> bool {
    env::var_os(format!("CARGO_FEATURE_{}", feature.to_uppercase())).is_some()
}

/// Returns whether this build embeds the kernel. A build embeds the kernels of the lineage, and those of the
/// backward pass, only with their features. -LSE and delta of a caller's backward pass come from
/// FerroFlash's kernels.
fn is_wanted(symbol: &str) -> bool {
    let is_delta = spec::DELTAS.iter().any(|delta| delta.contract.symbol == symbol);
    (is_on("kernels") || is_delta) && spec::feature_of(symbol).is_none_or(is_on)
}

fn wanted() -> impl Iterator<Item = spec::Contract> {
    spec::kernels().filter(|kernel| is_wanted(kernel.symbol))
}

/// Gathers machine code for the entries whose PTX is in `codes`. A published package has this code in
/// `cubins/` beside this file. Otherwise `cargo xtask build-cubin` has written it to `FERROFLASH_CUBIN_DIR`
/// or `../target/cubin`.
fn cubins(package: &Path, codes: Vec<(String, String)>, out: &Path) -> Result<()> {
    println!("cargo::rerun-if-env-changed=FERROFLASH_CUBIN_DIR");
    let (packaged, built) = (package.join("cubins"), package.join("../target/cubin"));
    let given = set("FERROFLASH_CUBIN_DIR");
    let is_package = given.is_none() && packaged.is_dir();
    let folder = given.unwrap_or(if is_package { packaged } else { built });
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut table = String::from(
        "/// `(symbol, architecture, compressed cubin)`.\nstatic CUBINS: &[(&str, u32, &[u8])] = &[\n",
    );
    for (symbol, code) in codes.into_iter().filter(|(symbol, _)| is_wanted(symbol)) {
        let kernel = spec::kernels().find(|kernel| kernel.symbol == symbol);
        let kernel = kernel.ok_or_else(|| format!("{symbol}: the table has no such kernel"))?;
        // A package's PTX and machine code belong together. A package may lack the machine code of a
        // generation.
        if !is_package {
            let theirs = fs::read_to_string(folder.join("ptx").join(&symbol).with_extension("ptx"));
            if theirs.map_err(|e| missing(&folder, &symbol, &e))? != code {
                return Err(missing(&folder, &symbol, &"its PTX differs from this build's PTX"));
            }
        }
        // Machine code from PTX for one generation has a separate folder, with the suffix `a`.
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

/// Returns the PTX texts of the folder that the user has named.
fn given(folder: &Path) -> Result<Vec<(&'static str, String)>> {
    if !folder.is_dir() {
        return Err(format!("FERROFLASH_PTX_DIR={}: it must be a folder", folder.display()).into());
    }
    // Cargo looks at all files of the folder. A kernel's missing file would count as changed in each build.
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut texts = Vec::new();
    for kernel in wanted() {
        let source = folder.join(kernel.symbol).with_extension("ptx");
        if let Ok(text) = fs::read_to_string(&source) {
            texts.push((kernel.symbol, text));
        }
    }
    let all = wanted().count();
    if texts.len() < all {
        println!("cargo::warning={} of {all} kernels are embedded, from {}", texts.len(), folder.display());
    }
    Ok(texts)
}

/// Returns the cache folder of compiled kernels: in the checkout or, if nobody can write there, in this
/// build's output folder.
fn kept(package: &Path, out: &Path) -> PathBuf {
    let shared = package.join("../target/cuda-builder");
    let probe = shared.join(format!("writable-{}", std::process::id()));
    // Mode bits say nothing of a file system that is mounted read-only, or of the owner.
    let tried = fs::create_dir_all(&shared).and_then(|()| fs::write(&probe, ""));
    if tried.and_then(|()| fs::remove_file(&probe)).is_ok() { shared } else { out.join("cuda-builder") }
}

fn built(kernels: &Path, out: &Path) -> Result<Vec<(&'static str, String)>> {
    // The cache's keys do not depend on the embedded kernels, so builds with other features share the cache.
    let builder = CudaBuilder::new(kernels).entries(spec::kernels()).features(["lineage", "training"]);
    let builder = builder.only(wanted().map(|kernel| kernel.symbol)).progress(say);
    // A checkout that is readable only may have been built before.
    let shared = kernels.join("../target/cuda-builder");
    let is_whole = builder.clone().target_dir(&shared).is_kept().unwrap_or_default();
    let folder = if is_whole { shared } else { kept(&kernels.join("../host"), out) };
    let builder = builder.target_dir(&folder);
    // The modules get no source lines, unless the cache has modules with source lines, whose code is equal.
    let with_lines = simulates() || builder.is_kept().unwrap_or_default();
    let builder = builder.debug(if with_lines { DebugInfo::Lines } else { DebugInfo::None });
    let (start, compiles) = (Instant::now(), !builder.is_kept().map_err(|error| error.to_string())?);
    let output = builder.build().map_err(|error| error.to_string())?;
    // A caller's backward pass needs few kernels, whose compilation takes seconds.
    if compiles && is_on("kernels") {
        let (count, time) = (output.modules.len(), clock(start.elapsed()));
        let folder = folder.canonicalize().unwrap_or(folder);
        println!("cargo::warning={count} kernels compiled in {time}; they are kept in {}", folder.display());
    }
    output.emit_rerun_if_changed();
    Ok(output.modules.into_iter().map(|module| (module.contract.symbol, module.text)).collect())
}

/// Prints the number of compiled kernels to the terminal, if there is one. Cargo shows no output of a build
/// script before the script ends.
fn say(made: usize, of: usize) {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let start = START.get_or_init(Instant::now);
    let is = |name: &str, value: &str| env::var_os(name).is_some_and(|set| set == value);
    if is("CARGO_TERM_QUIET", "true") || is("CARGO_TERM_PROGRESS_WHEN", "never") {
        return;
    }
    let Ok(mut terminal) = fs::OpenOptions::new().append(true).open("/dev/tty") else { return };
    let left = || clock(start.elapsed().mul_f64((of - made) as f64 / made as f64));
    let text = match made {
        0 => format!("{of} kernels, once for this checkout"),
        _ if made == of => format!("{of} kernels in {}", clock(start.elapsed())),
        _ => format!("{made} of {of} kernels, {} left", left()),
    };
    // Overwrites cargo's own line. Cargo writes its line again. A closed terminal is not an error.
    let _ = writeln!(terminal, "\r\x1b[K   Compiling ferroflash: {text}");
}

/// Prints a duration as minutes and seconds.
fn clock(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}
