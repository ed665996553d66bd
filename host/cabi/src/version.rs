//! What the library was built with.
use crate::append::AppendArgs;
use crate::decode::DecodeArgs;
use crate::forward::{ForwardArgs, PlanInfo};
use crate::merge::MergeArgs;
use ferroflash::spec::KERNELS;
use std::ffi::{CString, c_char};
use std::sync::OnceLock;

/// `FERROFLASH_ABI_VERSION`.
pub const ABI_VERSION: u32 = 1;

/// The interface's version.
#[unsafe(no_mangle)]
pub extern "C" fn ferroflash_abi_version() -> u32 {
    ABI_VERSION
}

/// The library's version, `major.minor.patch`.
#[unsafe(no_mangle)]
pub extern "C" fn ferroflash_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Bytes of `ferroflash_forward_t`.
#[unsafe(no_mangle)]
pub extern "C" fn ferroflash_forward_size() -> usize {
    size_of::<ForwardArgs>()
}

/// Bytes of `ferroflash_plan_info_t`.
#[unsafe(no_mangle)]
pub extern "C" fn ferroflash_plan_info_size() -> usize {
    size_of::<PlanInfo>()
}

/// Bytes of `ferroflash_append_t`.
#[unsafe(no_mangle)]
pub extern "C" fn ferroflash_append_size() -> usize {
    size_of::<AppendArgs>()
}

/// Bytes of `ferroflash_decode_t`.
#[unsafe(no_mangle)]
pub extern "C" fn ferroflash_decode_size() -> usize {
    size_of::<DecodeArgs>()
}

/// Bytes of `ferroflash_merge_t`.
#[unsafe(no_mangle)]
pub extern "C" fn ferroflash_merge_size() -> usize {
    size_of::<MergeArgs>()
}

/// Number of compiled kernels.
#[unsafe(no_mangle)]
pub extern "C" fn ferroflash_entry_count() -> usize {
    KERNELS.len()
}

/// Name of a compiled kernel; null behind the last.
#[unsafe(no_mangle)]
pub extern "C" fn ferroflash_entry_name(index: usize) -> *const c_char {
    entry_names().get(index).map_or(std::ptr::null(), |name| name.as_ptr())
}

/// The name of an entry as C reads it.
pub(crate) fn entry_name(symbol: &str) -> *const c_char {
    let index = KERNELS.iter().position(|kernel| kernel.symbol == symbol);
    ferroflash_entry_name(index.unwrap_or(usize::MAX))
}

fn entry_names() -> &'static [CString] {
    static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
    // A symbol is an identifier: it has no NUL.
    NAMES.get_or_init(|| {
        KERNELS.iter().map(|kernel| CString::new(kernel.symbol).unwrap_or_default()).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, read};

    /// Structs as they are in programs that exist: their sizes never change, whatever is added behind them.
    #[test]
    fn older_smaller_structs_still_work() {
        fn check<A: Args>(bytes: usize) {
            assert_eq!(A::LEAST, bytes, "{}: the size in version 1 of the interface", A::NAME);
            // No byte more is there than the caller knows.
            let mut older = vec![0u64; bytes.div_ceil(8)];
            older[0] = bytes as u64;
            // SAFETY: as many bytes as the first field says.
            let known = unsafe { read::<A>(older.as_ptr().cast()) };
            // SAFETY: all fields are plain, and their values are read back as bytes.
            let known = known.map(|args| unsafe { *(&raw const args).cast::<u64>() });
            assert_eq!(known, Ok(bytes as u64), "{}", A::NAME);
            older[0] = bytes as u64 - 1;
            // SAFETY: as above.
            let error = unsafe { read::<A>(older.as_ptr().cast()) }.map(|_| ()).expect_err(A::NAME);
            assert!(error.to_string().contains(A::SIZE), "{error}");
        }
        check::<ForwardArgs>(272);
        check::<AppendArgs>(184);
        check::<DecodeArgs>(344);
        check::<MergeArgs>(152);
        assert_eq!(PlanInfo::SIZE_V1, 56);
    }
}
