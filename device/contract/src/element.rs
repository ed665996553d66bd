//! Element types: as types for kernels, and as values for hosts.
use crate::Target;
use core::marker::PhantomData;

/// An element type, as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// OCP's E4M3, with eight bits (`e4m3fn`: no infinity, largest value 448). Only KV caches have this type.
    E4m3,
    /// Integers of eight bits, with two's complement. Only KV caches have this type. A value is the integer
    /// times the scale of its row.
    Int8,
    /// Rows of [`E4m3Scaled::ROW_BYTES`] bytes. An element is a byte. Only latent KV caches have this type.
    E4m3Scaled,
    /// IEEE binary32. Only partial results have this type.
    F32,
}

impl DType {
    /// The type's name in entry symbols and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::E4m3 => "e4m3",
            DType::Int8 => "int8",
            DType::E4m3Scaled => "e4m3_scaled",
            DType::F32 => "f32",
        }
    }

    /// Size of one element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            DType::F16 | DType::Bf16 => 2,
            DType::E4m3 | DType::Int8 | DType::E4m3Scaled => 1,
            DType::F32 => 4,
        }
    }

    /// Number of bits of the mantissa that are stored.
    pub const fn mantissa_bits(self) -> i32 {
        match self {
            DType::F16 => 10,
            DType::Bf16 => 7,
            DType::E4m3 | DType::E4m3Scaled => 3,
            DType::Int8 => 0,
            DType::F32 => 23,
        }
    }

    /// Exponent of the smallest normal number, as a power of two.
    pub const fn min_exponent(self) -> i32 {
        match self {
            DType::F16 => -14,
            DType::Bf16 => -126,
            DType::E4m3 | DType::E4m3Scaled => -6,
            DType::Int8 => 0,
            DType::F32 => -126,
        }
    }
}

/// Which instructions multiply the tiles of an element type ([`Element::PATH`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// Tensor cores: `mma.sync`, or `wgmma` on Hopper.
    TensorCores,
    /// CUDA cores: f32 fma.
    CudaCores,
}

impl Path {
    /// The name of the instructions in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Path::TensorCores => "tensor cores",
            Path::CudaCores => "CUDA cores",
        }
    }
}

/// An element type, as a type.
pub trait Element: Copy {
    /// The element type as a value.
    const DTYPE: DType;
    /// The instructions that multiply tiles of this type.
    const PATH: Path = Path::TensorCores;
    /// Size of one element in bytes.
    const BYTES: usize = Self::DTYPE.bytes();
    /// GPUs that can convert this element type.
    const TARGET: Target = Target::From(80);
}

/// IEEE binary16.
#[derive(Clone, Copy, Debug)]
pub struct F16;
/// bfloat16.
#[derive(Clone, Copy, Debug)]
pub struct Bf16;
/// OCP's E4M3, with eight bits. Kernels convert this type by integer arithmetic.
#[derive(Clone, Copy, Debug)]
pub struct E4m3;

/// Integers of eight bits. Each row has a scale.
#[derive(Clone, Copy, Debug)]
pub struct Int8;

/// Rows that DeepSeek's models store (FlashMLA's 656 bytes a token, vLLM's `fp8_ds_mla`): 512 e4m3, a f32 for
/// each 128 of them, which is their scale, and 64 bf16. A row stands for 576 numbers.
#[derive(Clone, Copy, Debug)]
pub struct E4m3Scaled;

impl E4m3Scaled {
    /// Bytes of a row.
    pub const ROW_BYTES: usize = 656;
    /// Number of e4m3 in a row.
    pub const SCALED: usize = 512;
    /// Number of e4m3 that share a scale.
    pub const PER_SCALE: usize = 128;
    /// Number of bf16 in a row, which follow the scales.
    pub const PLAIN: usize = 64;
    /// Number of numbers for which a row stands.
    pub const COLUMNS: usize = Self::SCALED + Self::PLAIN;
}

/// IEEE binary32.
#[derive(Clone, Copy, Debug)]
pub struct F32;

/// Element type `E`, converted by an instruction of the hardware.
#[derive(Clone, Copy, Debug)]
pub struct Native<E>(PhantomData<E>);

/// Element type `E`, whose tiles are multiplied on CUDA cores.
#[derive(Clone, Copy, Debug)]
pub struct Scalar<E>(PhantomData<E>);

impl<E: Element> Element for Scalar<E> {
    const DTYPE: DType = E::DTYPE;
    const PATH: Path = Path::CudaCores;
}
impl Element for F16 {
    const DTYPE: DType = DType::F16;
}
impl Element for Bf16 {
    const DTYPE: DType = DType::Bf16;
}
impl Element for E4m3 {
    const DTYPE: DType = DType::E4m3;
}
impl Element for Int8 {
    const DTYPE: DType = DType::Int8;
}
impl Element for E4m3Scaled {
    const DTYPE: DType = DType::E4m3Scaled;
}
impl Element for F32 {
    const DTYPE: DType = DType::F32;
}
impl Element for Native<E4m3> {
    const DTYPE: DType = DType::E4m3;
    const TARGET: Target = Target::From(89);
}
impl Element for Native<E4m3Scaled> {
    const DTYPE: DType = DType::E4m3Scaled;
    const TARGET: Target = Target::From(89);
}
