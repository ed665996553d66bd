//! The kernels' PTX, which the build embeds. Files of a folder may replace the PTX of some kernels.
use crate::Error;
use compression::{lzma, numbers};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, OnceLock};

include!(concat!(env!("OUT_DIR"), "/ptx_table.rs"));

/// A block of concatenated texts.
#[allow(dead_code, reason = "a build has only one kind of blocks")]
enum Block<'a> {
    /// Compressed code whose numbers are differences.
    Code(&'a [u8]),
    /// Compressed source lines.
    Lines(&'a [u8]),
    /// Uncompressed text.
    Text(&'a [u8]),
}

/// The place of a text: the number of the text's block, and the text's range in the block's content.
type Part = (usize, core::ops::Range<usize>);

/// The kernels that a folder replaces in this process.
struct Replacement {
    folder: PathBuf,
    symbols: Vec<&'static str>,
}

static REPLACEMENT: OnceLock<Replacement> = OnceLock::new();

/// Replaces kernels in the whole process: from now on, each kernel with a file `<symbol>.ptx` in `folder` is
/// loaded from that file. Kernels that are already loaded do not change. Returns the replaced kernels.
///
/// This function is for kernel developers. The program `ferroflash` calls it for `--ptx-dir`. A library never
/// calls it: no environment variable replaces a kernel at run time. (The build script reads
/// `FERROFLASH_PTX_DIR`, which selects the PTX to embed.)
///
/// # Errors
/// Returns [`Error::Invalid`] if `folder` has no file of a kernel, or if the process has already replaced
/// kernels.
///
/// # Safety
/// - The entry in each file takes the parameters of the kernel with its name, and accesses no memory that the
///   kernel would not access. Every launch relies on this. (The simulator checks each access.)
/// - The files do not change while the process runs.
pub unsafe fn replace_from(folder: &Path) -> Result<&'static [&'static str], Error> {
    let invalid = |expected: &str| Error::invalid("PTX folder", folder.display(), expected);
    let has_file = |symbol: &str| folder.join(symbol).with_extension("ptx").is_file();
    let symbols: Vec<_> = spec::kernels().map(|kernel| kernel.symbol).filter(|name| has_file(name)).collect();
    if symbols.is_empty() {
        return Err(invalid("it must have a file <symbol>.ptx of at least one kernel of the table"));
    }
    let replacement = Replacement { folder: folder.to_owned(), symbols };
    REPLACEMENT
        .set(replacement)
        .map_err(|_| invalid("a process can replace kernels only once; put all files into one folder"))?;
    Ok(REPLACEMENT.get().map_or(&[], |replacement| &replacement.symbols))
}

/// Returns the file that replaces a kernel in this process, if [`replace_from`] found one.
pub fn replacement(symbol: &str) -> Option<PathBuf> {
    let Replacement { folder, symbols } = REPLACEMENT.get()?;
    symbols.contains(&symbol).then(|| folder.join(symbol).with_extension("ptx"))
}

/// Returns the PTX text of an entry: its [`replacement`], otherwise this build's. The text has source lines
/// (`.loc`, `.file`) if this build has the feature `sim`.
///
/// # Errors
/// Returns [`Error::Unsupported`] if this build lacks the entry, or the replacement cannot be read.
pub fn source(symbol: &str) -> Result<String, Error> {
    if let Some(path) = replacement(symbol) {
        let unreadable = |e| Error::unsupported(symbol, format_args!("{}: {e}", path.display()));
        return std::fs::read_to_string(&path).map_err(unreadable);
    }
    let Some(parts) = row(symbol) else {
        if cfg!(not(feature = "kernels")) {
            let reason = "this build carries no kernel of FerroFlash; build ferroflash with its feature \
                          `kernels`, which is on by default";
            return Err(Error::unsupported(symbol, reason));
        }
        let reason = format_args!(
            "this build carries {} of {} kernels, and not {symbol}; build ferroflash again, with \
             FERROFLASH_PTX_DIR unset or with {symbol}.ptx in its folder",
            TABLE.iter().filter(|(name, ..)| !is_left_out(name)).count(),
            spec::KERNELS.len()
        );
        return Err(Error::unsupported(symbol, reason));
    };
    module(parts, CODE)
}

/// Returns the text of an entry. The entry's code and source lines are parts of these blocks.
fn module((symbol, code, lines): &(&str, Part, Option<Part>), blocks: &[Block<'_>]) -> Result<String, Error> {
    let damaged = |e| Error::unsupported(symbol, format_args!("the PTX of this build is damaged: {e}"));
    text(code, blocks).and_then(|code| joined(code, lines.as_ref())).map_err(damaged)
}

/// Returns whether this build embeds PTX of an entry.
pub fn is_embedded(symbol: &str) -> bool {
    row(symbol).is_some()
}

/// Returns the row of an entry. A search of the table would make each test that asks for every kernel compare
/// a million names.
fn row(symbol: &str) -> Option<&'static (&'static str, Part, Option<Part>)> {
    static ROWS: LazyLock<HashMap<&str, usize>> =
        LazyLock::new(|| TABLE.iter().enumerate().map(|(at, (name, ..))| (*name, at)).collect());
    ROWS.get(symbol).map(|at| &TABLE[*at]).filter(|_| !is_left_out(symbol))
}

/// Returns whether this process has to do without a kernel that the build embeds. If the environment variable
/// `FERROFLASH_TEST_KERNELS` names a folder, the process has only the kernels with a file `<symbol>.ptx`
/// there, as if this folder had been embedded. With it, one build of the tests runs on all kernels and on a
/// sample. A thread that asks for another kernel [is noted](note_thread).
#[cfg(feature = "sim")]
fn is_left_out(symbol: &str) -> bool {
    use std::collections::HashSet;
    static KEPT: OnceLock<Option<HashSet<String>>> = OnceLock::new();
    let kept = KEPT.get_or_init(|| {
        let folder = std::env::var_os("FERROFLASH_TEST_KERNELS")?;
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        Some(names.filter_map(|name| name.strip_suffix(".ptx").map(str::to_owned)).collect())
    });
    let is_left_out = kept.as_ref().is_some_and(|kept| !kept.contains(symbol));
    if is_left_out {
        note_thread();
    }
    is_left_out
}

/// Notes in the folder `FERROFLASH_TEST_NOTES` that this thread has to do without a kernel: writes an empty
/// file with the thread's name, which is its test's. A test without such a file does the same on all kernels,
/// so `cargo xtask ci` does not run it again.
///
/// # Panics
/// Panics if it cannot write the file, because ci would then lose a test.
#[cfg(feature = "sim")]
fn note_thread() {
    use std::{cell::Cell, env, fs::File, thread};
    thread_local!(static IS_NOTED: Cell<bool> = const { Cell::new(false) });
    if !IS_NOTED.replace(true)
        && let Some(folder) = env::var_os("FERROFLASH_TEST_NOTES")
    {
        let note = Path::new(&folder).join(thread::current().name().unwrap_or("unnamed"));
        File::create(&note).unwrap_or_else(|error| panic!("{}: {error}", note.display()));
    }
}

/// Returns false: only builds with the simulator run tests on some of their kernels.
#[cfg(not(feature = "sim"))]
fn is_left_out(_: &str) -> bool {
    false
}

/// Joins code with its source lines, if they are stored apart.
#[cfg(feature = "sim")]
fn joined(code: String, lines: Option<&Part>) -> io::Result<String> {
    let Some(lines) = lines else { return Ok(code) };
    cuda_builder::lines::join(&code, &text(lines, LINES)?).map_err(io::Error::other)
}

/// Returns the code. Only builds with the simulator embed source lines.
#[cfg(not(feature = "sim"))]
fn joined(code: String, _: Option<&Part>) -> io::Result<String> {
    Ok(code)
}

fn text((block, range): &Part, blocks: &[Block<'_>]) -> io::Result<String> {
    let cut_off = || io::Error::new(io::ErrorKind::UnexpectedEof, "a block is cut off");
    let slice = |content: &[u8]| content.get(range.clone()).map(<[u8]>::to_vec).ok_or_else(cut_off);
    let utf8 = |bytes| String::from_utf8(bytes).map_err(io::Error::other);
    match blocks.get(*block).ok_or_else(cut_off)? {
        Block::Code(packed) => {
            let encoded = utf8(slice(&lzma::decompress(packed)?)?)?;
            numbers::decode(&encoded).map_err(io::Error::other)
        }
        Block::Lines(packed) => utf8(slice(&lzma::decompress(packed)?)?),
        Block::Text(text) => utf8(slice(text)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_is_whole() {
        for parts in TABLE {
            let text = module(parts, CODE).expect("whole");
            assert!(text.contains(&format!(".entry {}(", parts.0)), "{}", parts.0);
        }
    }

    #[test]
    fn damage_is_an_error() {
        // Selects a small block, and its last module.
        let packed = CODE.iter().enumerate().filter_map(|(n, block)| match block {
            Block::Code(packed) => Some((n, *packed)),
            Block::Lines(_) | Block::Text(_) => None,
        });
        let smallest = packed.min_by_key(|(_, packed)| packed.len());
        let (block, packed) = smallest.expect("this workspace builds with FERROFLASH_COMPRESS=1");
        let (symbol, (_, range), lines) =
            TABLE.iter().rfind(|(_, (of, _), _)| *of == block).expect("a kernel");
        let whole =
            module(&(symbol, (0, range.clone()), lines.clone()), &[Block::Code(packed)]).expect("whole");
        let check = |packed: &[u8], what: &dyn Fn() -> String| {
            match module(&(symbol, (0, range.clone()), lines.clone()), &[Block::Code(packed)]) {
                // Two changes do not affect the decompressed text: a larger dictionary in the header, and
                // bytes that the decoder does not read.
                Ok(text) => assert!(text == whole, "{}", what()),
                Err(error) => {
                    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
                    assert!(error.to_string().contains("damaged"), "{error}");
                }
            }
        };
        let step = packed.len() / 64;
        for at in (0..32).chain((32..packed.len()).step_by(step)) {
            for bit in 0..8 {
                let mut flipped = packed.to_vec();
                flipped[at] ^= 1 << bit;
                check(&flipped, &|| format!("bit {bit} of byte {at}"));
            }
        }
        for end in (0..32).chain((32..packed.len()).step_by(step)) {
            let cut = &[Block::Code(&packed[..end])];
            let error = module(&(symbol, (0, range.clone()), lines.clone()), cut);
            let error = error.expect_err("cut off");
            assert!(matches!(error, Error::Unsupported { .. }), "{end} bytes: {error}");
        }
    }
}
