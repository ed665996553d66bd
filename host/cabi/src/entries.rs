//! The names of the compiled kernels.
use ferroflash::spec::KERNELS;
use std::ffi::{CString, c_char};
use std::sync::OnceLock;

/// Returns the number of compiled kernels.
#[unsafe(no_mangle)]
pub extern "C" fn ferroflash_entry_count() -> usize {
    KERNELS.len()
}

/// Returns the name of a compiled kernel, or null for an index past the last kernel.
#[unsafe(no_mangle)]
pub extern "C" fn ferroflash_entry_name(index: usize) -> *const c_char {
    entry_names().get(index).map_or(std::ptr::null(), |name| name.as_ptr())
}

/// Returns the name of an entry as a C string.
pub(crate) fn entry_name(symbol: &str) -> *const c_char {
    let index = KERNELS.iter().position(|kernel| kernel.symbol == symbol);
    ferroflash_entry_name(index.unwrap_or(usize::MAX))
}

fn entry_names() -> &'static [CString] {
    static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
    // A symbol is an identifier, so it contains no NUL.
    NAMES.get_or_init(|| {
        KERNELS.iter().map(|kernel| CString::new(kernel.symbol).unwrap_or_default()).collect()
    })
}
