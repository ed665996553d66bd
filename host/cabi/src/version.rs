//! The library's version, and the sizes of its structs.
use crate::append::AppendArgs;
use crate::decode::DecodeArgs;
use crate::forward::{ForwardArgs, PlanInfo};
use crate::merge::MergeArgs;
use std::ffi::c_char;

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
