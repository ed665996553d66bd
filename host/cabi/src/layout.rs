//! `c_struct!` declares a struct of `ferroflash.h`: its fields with their types in C and their documentation.
use std::ffi::{c_char, c_void};

/// A field of a struct.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Its type in C, or the type of its elements.
    pub c: &'static str,
    /// The number of elements of an array; 0 for a single value.
    pub count: usize,
    /// Its offset in bytes.
    pub offset: usize,
    /// Its size in bytes.
    pub bytes: usize,
    /// Lines of documentation of this field and of the undocumented fields behind it.
    pub docs: &'static [&'static str],
}

/// The type of a field.
pub(crate) trait CType {
    /// See [`Field::c`].
    const C: &'static str;
    /// See [`Field::count`].
    const COUNT: usize = 0;
}

macro_rules! c_types {
    ($($type:ty: $c:literal),* $(,)?) => {
        $(impl CType for $type {
            const C: &'static str = $c;
        })*
    };
}
c_types! {
    i32: "int32_t", i64: "int64_t", u32: "uint32_t", u64: "uint64_t", f32: "float",
    *const c_void: "const void *", *mut c_void: "void *", *const c_char: "const char *",
    *const f32: "const float *", *mut f32: "float *", *const i32: "const int32_t *",
    *const u8: "const uint8_t *",
}

impl<T: CType, const N: usize> CType for [T; N] {
    const C: &'static str = T::C;
    const COUNT: usize = N;
}

/// Declares a struct: its C name, its smallest valid size in bytes, and the function that returns its size. A
/// caller may omit the fields that begin after the smallest size.
macro_rules! c_struct {
    ($(#[$about:meta])* $name:ident: $c:literal, from $least:literal $(, size $size:ident)? {
        $($(#[doc = $long:literal])* $first:ident $(, $more:ident)*: $type:ty $(, $short:literal)?;)*
    }) => {
        $(#[$about])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            $(#[doc = "`ferroflash.h` documents it."] pub $first: $type,
            $(#[doc = "`ferroflash.h` documents it."] pub $more: $type,)*)*
        }

        $(#[doc = concat!("Returns the number of bytes of `ferroflash_", $c, "_t`.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $size() -> usize {
            size_of::<$name>()
        }
        )?

        // SAFETY: all fields are numbers and pointers.
        unsafe impl Args for $name {
            const NAME: &str = $c;
            const SIZE: &str = concat!($c, ".size");
            const LEAST: usize = $least;
            const FIELDS: &[Field] = &[
                $(c_struct!(field $name, $first, $type, &[$($long,)* $($short)?]),
                $(c_struct!(field $name, $more, $type, &[]),)*)*
            ];
        }
    };
    (field $name:ident, $field:ident, $type:ty, $docs:expr) => {
        Field {
            name: stringify!($field),
            c: <$type as CType>::C,
            count: <$type as CType>::COUNT,
            offset: std::mem::offset_of!($name, $field),
            bytes: size_of::<$type>(),
            docs: $docs,
        }
    };
}
pub(crate) use c_struct;

/// Returns whether the fields follow each other without padding, so that every byte is initialised.
pub(crate) const fn is_plain(fields: &[Field], size: usize) -> bool {
    let (mut next, mut end) = (0, 0);
    while next < fields.len() {
        if fields[next].offset != end {
            return false;
        }
        (next, end) = (next + 1, end + fields[next].bytes);
    }
    end == size
}
