//! The library's version.
use std::ffi::c_char;

/// `FERROFLASH_ABI_VERSION`.
pub const ABI_VERSION: u32 = 1;

/// Returns the interface's version.
#[unsafe(no_mangle)]
pub extern "C" fn ferroflash_abi_version() -> u32 {
    ABI_VERSION
}

/// Returns the library's version, `major.minor.patch`.
#[unsafe(no_mangle)]
pub extern "C" fn ferroflash_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use crate::args::{Args, read};
    use crate::layout::Field;
    use crate::structs::{AppendArgs, AttentionArgs, BackwardArgs, MergeArgs, PlanInfo};
    use ferroflash::Error;

    /// Reads a struct of `size` bytes from memory of 8-byte words. The first word is `size`, and every other
    /// word is `word`.
    fn of_size<A: Args>(size: usize, words: usize, word: u64) -> Result<A, Error> {
        let mut memory = vec![word; words];
        memory[0] = size as u64;
        // SAFETY: `size` is at most the memory's size, or an invalid size. With an invalid size, only the
        // size is read.
        unsafe { read::<A>(memory.as_ptr().cast()) }
    }

    /// Checks that the library accepts structs of programs that were compiled with another header.
    fn check<A: Args>() {
        let (ours, least) = (size_of::<A>(), A::LEAST);
        let is_boundary = |field: &Field| field.offset + field.bytes == least;
        assert!(A::FIELDS.iter().any(is_boundary) && least.is_multiple_of(8), "{}: {least}", A::NAME);
        // This struct is older and smaller. The library reads nothing behind this struct, and sets the fields
        // that the struct lacks to 0.
        let older = of_size::<A>(least, least / 8, u64::from_ne_bytes([7; 8])).expect("an older struct");
        for Field { name, offset, bytes, .. } in A::FIELDS.iter().skip(1) {
            // SAFETY: the field contains numbers or pointers, so all of its bytes are initialised.
            let field: &[u8] =
                unsafe { std::slice::from_raw_parts((&raw const older).byte_add(*offset).cast(), *bytes) };
            let expected = if *offset < least { 7 } else { 0 };
            assert!(field.iter().all(|byte| *byte == expected), "{}.{name}: {field:?}", A::NAME);
        }
        assert!(of_size::<A>(ours, ours / 8, 7).is_ok(), "{}", A::NAME);
        // This struct is newer and larger. In the first case the additional fields are 0, in the second case
        // they are not.
        assert!(of_size::<A>(ours + 8, ours / 8 + 1, 0).is_ok(), "{}", A::NAME);
        let error = of_size::<A>(ours + 8, ours / 8 + 1, 9).map(drop).expect_err(A::NAME);
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        // These sizes belong to no struct. The last size ends within a pointer.
        for size in [0, 8, least - 1, usize::MAX, least + 1] {
            let error = of_size::<A>(size, ours / 8, 0).map(drop).expect_err(A::NAME).to_string();
            assert!(error.contains(A::SIZE), "{error}");
        }
    }

    #[test]
    fn structs_of_other_headers_work() {
        check::<AttentionArgs>();
        check::<BackwardArgs>();
        check::<AppendArgs>();
        check::<MergeArgs>();
    }

    /// These are the struct sizes of older programs. These sizes must stay valid when the structs get new
    /// fields.
    #[test]
    fn smallest_sizes_never_grow() {
        assert_eq!([AttentionArgs::LEAST, AppendArgs::LEAST, MergeArgs::LEAST], [312, 184, 152]);
        assert_eq!([BackwardArgs::LEAST, PlanInfo::LEAST], [216, 56]);
    }
}
