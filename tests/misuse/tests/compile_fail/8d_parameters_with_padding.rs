//! Parameters of a mask with four bytes that no field has.

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    base: u64,
    keys: u32,
}
spec::no_padding! { Params { base, keys } }

fn main() {}
