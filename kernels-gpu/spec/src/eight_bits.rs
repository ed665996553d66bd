//! Forward kernels with products of eight bits, and the kernels that quantise their keys and values.
use crate::forward::{oldest_with, tile_bytes};
use crate::*;
use core::marker::PhantomData;

/// Bytes of the image of a stage of `keys` keys and values: int8 keys, e4m3 values as columns, a scale per
/// key, a scale for all values.
pub const fn image_bytes(keys: u32, head_dim: u32) -> u32 {
    keys_image_bytes(keys, head_dim) + keys * head_dim + 16
}

/// Bytes of the image of a stage's keys alone: int8, and a scale per key.
pub const fn keys_image_bytes(keys: u32, head_dim: u32) -> u32 {
    keys * head_dim + 4 * keys
}

/// Forward attention of [`Precision::Int8Fp8`]. The sizes are those of [`Fwd`]; a warp holds the first `HELD`
/// k-steps (of 32 columns) of Q in registers. Kernels with functions of scores keep `KEPT` = 2 numbers of
/// each row in shared memory. `k` of the parameters describes images of [`QuantiseKv`], one per stage, with
/// the number of keys as `rows`; `v` describes the means of keys of dense tensors, as one row of f32. On a KV
/// cache of [`Int8`], keys are the cache's, and `v` describes the images of [`LayInt8Pages`].
pub struct FwdInt8Fp8<
    E,
    Mask,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HELD: usize,
    const KEPT: usize = 0,
>(PhantomData<(E, Mask)>);

impl<
    E: Element,
    Mask: MaskMarker,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HELD: usize,
    const KEPT: usize,
> Kernel for FwdInt8Fp8<E, Mask, M, W, N, D, HELD, KEPT>
{
    type Params = FwdParams;
    const TARGET: Target = Target::Fp8Mma;
    const THREADS: u32 = {
        assert!(M.is_multiple_of(W), "the warps' row tiles must make up the block's");
        (M / W) as u32 * 32
    };
    const SMEM_BYTES: usize = {
        let image = image_bytes(N as u32 * 16, D as u32 * 16) as usize;
        2 * image.next_multiple_of(128) + M * (D / 2 - HELD) * 512 + M * KEPT * 256
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
    const KEPT: usize,
> Line for FwdInt8Fp8<E, Mask, M, W, N, D, HELD, KEPT>
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
    const KEPT: usize,
> AttnKernel for FwdInt8Fp8<E, Mask, M, W, N, D, HELD, KEPT>
{
    type Isa = Sm80;
    type Mask = Mask;
}

impl<
    E: Element,
    Mask: MaskMarker,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HELD: usize,
    const KEPT: usize,
> Forward for FwdInt8Fp8<E, Mask, M, W, N, D, HELD, KEPT>
{
    type Scales = [PerHead; 2];
    type OnVarlen = VarlenParams;
}

/// Forward attention of [`Precision::Int8F16`]: scores as [`FwdInt8Fp8`] computes them, values and their
/// products as in [`Fwd`], with two stages. `k` of the parameters describes images of [`QuantiseKv`] without
/// values, one per stage, with the number of keys as `rows`.
pub struct FwdInt8F16<
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
> Kernel for FwdInt8F16<E, Mask, M, W, N, D, HELD>
{
    type Params = FwdParams;
    const TARGET: Target = oldest_with(Self::SMEM_BYTES);
    const THREADS: u32 = {
        assert!(M.is_multiple_of(W), "the warps' row tiles must make up the block's");
        (M / W) as u32 * 32
    };
    const SMEM_BYTES: usize = {
        let image = keys_image_bytes(N as u32 * 16, D as u32 * 16) as usize;
        // Beside Q, each row has two numbers.
        let q = M * (D / 2 - HELD) * 512 + M * 512;
        2 * (image.next_multiple_of(1024) + tile_bytes::<E>() * N * D) + q
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
> Line for FwdInt8F16<E, Mask, M, W, N, D, HELD>
{
    type Info = AttnInfo;
    const INFO: AttnInfo = AttnInfo {
        contract: Contract::of::<Self>(""),
        keys: Keys::QuantisedAlone,
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
> AttnKernel for FwdInt8F16<E, Mask, M, W, N, D, HELD>
{
    type Isa = Sm80;
    type Mask = Mask;
}

impl<
    E: Element,
    Mask: MaskMarker,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HELD: usize,
> Forward for FwdInt8F16<E, Mask, M, W, N, D, HELD>
{
    type Scales = ();
    type OnVarlen = VarlenParams;
}

/// Quantises keys and values of type `E`. A block makes the image of `N` base tiles of keys and values, which
/// have `D` and `DV` base tiles of columns. The keys' mean over 64 evenly spaced keys is subtracted first: a
/// softmax does not change by it. With `DV` = 0, values stay as they are.
pub struct QuantiseKv<E, const N: usize, const D: usize, const DV: usize = D>(PhantomData<E>);

impl<E: Element, const N: usize, const D: usize, const DV: usize> Kernel for QuantiseKv<E, N, D, DV> {
    type Params = QuantiseParams;
    const TARGET: Target = Target::From(if DV == 0 { 80 } else { 89 });
    const THREADS: u32 = 128;
    /// One word per warp.
    const SMEM_BYTES: usize = 16;
    /// With 128 registers, a block of 256 columns spills 76 bytes.
    const BLOCKS_PER_SM: u32 = if D > 8 { 3 } else { 4 };
    fn grid(params: &QuantiseParams) -> [u32; 3] {
        [params.tiles, 1, 1]
    }
}

impl<E: Element, const N: usize, const D: usize, const DV: usize> Line for QuantiseKv<E, N, D, DV> {
    type Info = QuantiseInfo;
    const INFO: QuantiseInfo = QuantiseInfo {
        contract: Contract::of::<Self>(""),
        precision: if DV == 0 { Precision::Int8F16 } else { Precision::Int8Fp8 },
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
    /// The images, which the kernel writes: `row_bytes` is the distance of images. Before the images of each
    /// head, the kernel writes the means of keys, one row of f32 per sequence, in reverse order.
    pub images: Tensor,
    /// The tensors' sequences. The blocks of keys of varlen tensors have numbers by rows
    /// ([`Sequences::by_rows`]).
    pub sequences: Fp8Sequences,
    /// Images per head.
    pub blocks: FastDiv,
    /// Key heads per batch.
    pub heads: FastDiv,
    /// Number of images. Some images of varlen tensors have no keys.
    pub tiles: u32,
    /// Padding: 0.
    pub reserved: u32,
}
contract::no_padding! {
    QuantiseParams { k, v, images, sequences, blocks, heads, tiles, reserved }
}

/// A compiled [`QuantiseKv`] as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantiseInfo {
    /// The kernel's launch contract.
    pub contract: Contract,
    /// The precision of the attention kernels that it feeds.
    pub precision: Precision,
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
        // A cache of int8 has keys that are quantised already.
        let alike = alike && !matches!(entry.kv_dtype, DType::Int8);
        self.precision as u8 == entry.precision() as u8 && alike && self.head_dim == entry.head_dim
    }
}
