//! Forward kernels with products of eight bits, and the kernel that quantises their keys and values.
use crate::*;
use core::marker::PhantomData;

/// Bytes of the image of a stage of `keys` keys and values: int8 keys, e4m3 values as columns, a scale per
/// key, a scale for all values.
pub const fn image_bytes(keys: u32, head_dim: u32) -> u32 {
    2 * keys * head_dim + 4 * keys + 16
}

/// Forward attention of [`Precision::Int8Fp8`]. The sizes are those of [`Fwd`]; a warp holds the first `HELD`
/// k-steps (of 32 columns) of Q in registers. `k` of the parameters describes images of [`QuantiseKv`], one
/// per stage, with the number of keys as `rows`; `v` describes the means of keys, as one row of f32.
pub struct FwdInt8Fp8<
    E,
    Mask,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HELD: usize,
>(PhantomData<(E, Mask)>);

impl<
    E: Element,
    Mask: MaskMarker,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HELD: usize,
> Kernel for FwdInt8Fp8<E, Mask, M, W, N, D, HELD>
{
    type Params = FwdParams;
    const TARGET: Target = Target::Fp8Mma;
    const THREADS: u32 = {
        assert!(M.is_multiple_of(W), "the warps' row tiles must make up the block's");
        (M / W) as u32 * 32
    };
    const SMEM_BYTES: usize = {
        let image = image_bytes(N as u32 * 16, D as u32 * 16) as usize;
        2 * image.next_multiple_of(128) + M * (D / 2 - HELD) * 512
    };
    fn grid(params: &FwdParams) -> [u32; 3] {
        [params.order.tiles, 1, 1]
    }
}

impl<
    E: Element,
    Mask: MaskMarker,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HELD: usize,
> Line for FwdInt8Fp8<E, Mask, M, W, N, D, HELD>
{
    type Info = AttnInfo;
    const INFO: AttnInfo = AttnInfo {
        contract: Contract::of::<Self>(""),
        keys: Keys::Quantised,
        stages: 2,
        ..<Fwd<E, Mask, M, W, 1, N, D, 0, 2> as Line>::INFO
    };
}

impl<
    E: Element,
    Mask: MaskMarker,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HELD: usize,
> AttnKernel for FwdInt8Fp8<E, Mask, M, W, N, D, HELD>
{
    type Isa = Sm80;
    type Mask = Mask;
}

/// Quantises keys and values of type `E`. A block makes the image of `N` base tiles of keys and values, which
/// have `D` base tiles of columns. The keys' mean over 64 evenly spaced keys is subtracted first: a softmax
/// does not change by it.
pub struct QuantiseKv<E, const N: usize, const D: usize>(PhantomData<E>);

impl<E: Element, const N: usize, const D: usize> Kernel for QuantiseKv<E, N, D> {
    type Params = QuantiseParams;
    const TARGET: Target = Target::From(89);
    const THREADS: u32 = 128;
    /// One word per warp.
    const SMEM_BYTES: usize = 16;
    const BLOCKS_PER_SM: u32 = 4;
    fn grid(params: &QuantiseParams) -> [u32; 3] {
        [params.tiles, 1, 1]
    }
}

impl<E: Element, const N: usize, const D: usize> Line for QuantiseKv<E, N, D> {
    type Info = QuantiseInfo;
    const INFO: QuantiseInfo = QuantiseInfo {
        contract: Contract::of::<Self>(""),
        dtype: E::DTYPE,
        keys: N as u32 * 16,
        head_dim: D as u32 * 16,
    };
}

/// Parameters of a [`QuantiseKv`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantiseParams {
    /// Keys.
    pub k: Tensor,
    /// Values.
    pub v: Tensor,
    /// The images, which the kernel writes: `row_bytes` is the distance of images.
    pub images: Tensor,
    /// The means of keys, one row of f32 per head, which the kernel writes.
    pub means: Tensor,
    /// Images per head.
    pub blocks: FastDiv,
    /// Key heads per batch.
    pub heads: FastDiv,
    /// Number of images.
    pub tiles: u32,
    /// Padding: 0.
    pub reserved: u32,
}
contract::no_padding! {
    QuantiseParams { k, v, images, means, blocks, heads, tiles, reserved }
}

/// A compiled [`QuantiseKv`] as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantiseInfo {
    /// The kernel's launch contract.
    pub contract: Contract,
    /// Dtype of keys and values.
    pub dtype: DType,
    /// Keys of an image.
    pub keys: u32,
    /// Largest head dim.
    pub head_dim: u32,
}

impl QuantiseInfo {
    /// Whether an attention kernel reads this kernel's images.
    pub const fn feeds(&self, entry: &AttnInfo) -> bool {
        let alike = self.dtype as u8 == entry.dtype as u8 && self.keys == entry.tile_n;
        matches!(entry.keys, Keys::Quantised) && alike && self.head_dim == entry.head_dim
    }
}
