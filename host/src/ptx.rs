//! The kernels' PTX: inside this library, or in a folder of your own.
use crate::{Error, lzma};
use std::io;
use std::path::{Path, PathBuf};

/// A folder with `<symbol>.ptx` files that override the PTX of this build, for people who work on kernels.
pub const PTX_DIR_VARIABLE: &str = "FERROFLASH_PTX_DIR";

include!(concat!(env!("OUT_DIR"), "/ptx_table.rs"));

/// PTX text of an entry: from the folder that `FERROFLASH_PTX_DIR` names, where it has the file, else from
/// this build. It has source lines (`.loc`, `.file`) where this build has the feature `sim`.
///
/// # Errors
/// [`Error::Unsupported`] where neither has it or the file cannot be read.
pub fn source(symbol: &str) -> Result<String, Error> {
    if let Some(path) = overriding(symbol) {
        let unreadable = |e| Error::unsupported(symbol, format_args!("{}: {e}", path.display()));
        return std::fs::read_to_string(&path).map_err(unreadable);
    }
    let Some((_, code, lines)) = TABLE.iter().find(|(name, ..)| *name == symbol) else {
        let reason = format_args!(
            "this build carries no PTX for it; set {PTX_DIR_VARIABLE} to a folder with {symbol}.ptx"
        );
        return Err(Error::unsupported(symbol, reason));
    };
    module(symbol, code, lines)
}

/// The text of an entry's parts.
fn module(symbol: &str, code: &[u8], lines: &[u8]) -> Result<String, Error> {
    let damaged = |e| Error::unsupported(symbol, format_args!("the PTX of this build is damaged: {e}"));
    text(code).and_then(|code| joined(code, lines)).map_err(damaged)
}

/// Whether this build carries PTX of an entry.
pub fn is_embedded(symbol: &str) -> bool {
    TABLE.iter().any(|(name, ..)| *name == symbol)
}

/// Whether `FERROFLASH_PTX_DIR` has a file for an entry.
pub(crate) fn is_overridden(symbol: &str) -> bool {
    overriding(symbol).is_some()
}

fn overriding(symbol: &str) -> Option<PathBuf> {
    let folder = std::env::var_os(PTX_DIR_VARIABLE)?;
    Some(Path::new(&folder).join(symbol).with_extension("ptx")).filter(|path| path.exists())
}

/// Code with its source lines.
#[cfg(feature = "sim")]
fn joined(code: String, lines: &[u8]) -> io::Result<String> {
    cuda_builder::lines::join(&code, &text(lines)?).map_err(io::Error::other)
}

/// Only who simulates carries lines.
#[cfg(not(feature = "sim"))]
fn joined(code: String, _: &[u8]) -> io::Result<String> {
    Ok(code)
}

fn text(packed: &[u8]) -> io::Result<String> {
    String::from_utf8(lzma::decompress(packed)?).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_is_whole() {
        for (symbol, code, lines) in TABLE {
            let text = module(symbol, code, lines).expect("whole");
            assert!(text.contains(&format!(".entry {symbol}(")), "{symbol}");
        }
    }

    #[test]
    fn damage_is_an_error() {
        let (symbol, code, lines) = TABLE.iter().min_by_key(|(_, code, _)| code.len()).expect("a kernel");
        let whole = module(symbol, code, lines).expect("whole");
        let check = |code: &[u8], what: &dyn Fn() -> String| match module(symbol, code, lines) {
            // Some more room for a dictionary, in the header, changes nothing.
            Ok(text) => assert!(text == whole, "{}", what()),
            Err(error) => {
                assert!(matches!(error, Error::Unsupported { .. }), "{error}");
                assert!(error.to_string().contains("damaged"), "{error}");
            }
        };
        for at in (0..32).chain((32..code.len()).step_by(7)) {
            for bit in 0..8 {
                let mut flipped = code.to_vec();
                flipped[at] ^= 1 << bit;
                check(&flipped, &|| format!("bit {bit} of byte {at}"));
            }
        }
        for end in (0..32).chain((32..code.len()).step_by(7)) {
            let error = module(symbol, &code[..end], lines).expect_err("cut off");
            assert!(matches!(error, Error::Unsupported { .. }), "{end} bytes: {error}");
        }
    }
}
