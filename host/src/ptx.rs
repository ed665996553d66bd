//! The kernels' PTX: inside this library, or in a folder of your own.
use crate::Error;
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
    inflate(code)
        .and_then(|code| joined(code, lines))
        .ok_or_else(|| Error::unsupported(symbol, "the PTX of this build is damaged"))
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
fn joined(code: String, lines: &[u8]) -> Option<String> {
    cuda_builder::lines::join(&code, &inflate(lines)?).ok()
}

/// Only who simulates carries lines.
#[cfg(not(feature = "sim"))]
fn joined(code: String, _: &[u8]) -> Option<String> {
    Some(code)
}

fn inflate(deflated: &[u8]) -> Option<String> {
    String::from_utf8(miniz_oxide::inflate::decompress_to_vec(deflated).ok()?).ok()
}
