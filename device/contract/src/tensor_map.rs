//! Tensors as a copy engine sees them.

/// A tensor map (`CUtensorMap`): what the copy engine of an sm_90 knows of a tensor. Opaque: the driver
/// encodes it. The engine reads it where the launch's parameter lies, so that a kernel with one wants
/// [`crate::Kernel::PARAM_ALIGN`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Its 128 bytes.
    pub words: [u64; 16],
}

impl TensorMap {
    /// What its address is a multiple of.
    pub const ALIGN: u32 = 64;
    /// One that nobody has encoded yet: a copy through it fails.
    pub const EMPTY: TensorMap = TensorMap { words: [0; 16] };
}
