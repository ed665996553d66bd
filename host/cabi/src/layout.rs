//! Structs of `ferroflash.h`. This file declares the fields of all structs once, and a test compares the
//! structs with the header.

/// A field of a struct: its name, its offset and its size in bytes.
pub type Field = (&'static str, usize, usize);

/// Declares a struct of `ferroflash.h`. The header documents the fields.
macro_rules! c_struct {
    ($(#[$doc:meta])* $name:ident { $($($field:ident),+: $type:ty;)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            $($(#[doc = "`ferroflash.h` documents it."] pub $field: $type,)+)*
        }

        impl $name {
            /// All fields, in order.
            pub const FIELDS: &'static [$crate::layout::Field] = &[
                $($((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$type>()),)+)*
            ];
        }
    };
}
pub(crate) use c_struct;

/// Returns whether the fields follow each other without padding, so that every byte is initialised.
pub(crate) const fn is_plain(fields: &[Field], size: usize) -> bool {
    let (mut next, mut end) = (0, 0);
    while next < fields.len() {
        let (_, offset, bytes) = fields[next];
        if offset != end {
            return false;
        }
        (next, end) = (next + 1, offset + bytes);
    }
    end == size
}
