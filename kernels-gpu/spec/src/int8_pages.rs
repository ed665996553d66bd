//! The kernel that rounds the values in a KV cache of int8 for products of e4m3.
use crate::*;

/// Bytes of the image of a stage's values alone: e4m3 as columns, and a scale.
pub const fn values_image_bytes(keys: u32, head_dim: u32) -> u32 {
    keys * head_dim + 16
}

/// Rounds the values in a KV cache of [`Int8`] to e4m3 for [`FwdInt8Fp8`] with `N` base tiles of keys per
/// stage, as [`QuantiseKv`] rounds values. A block of the kernel makes the image of a block of keys of a
/// head.
pub struct LayInt8Pages<const N: usize, const D: usize>;

impl<const N: usize, const D: usize> Kernel for LayInt8Pages<N, D> {
    type Params = LayInt8PagesParams;
    const TARGET: Target = Target::Fp8Mma;
    const THREADS: u32 = 128;
    /// One word per warp.
    const SMEM_BYTES: usize = 16;
    const BLOCKS_PER_SM: u32 = 4;
    fn grid(params: &LayInt8PagesParams) -> [u32; 3] {
        [params.lay.tiles, 1, 1]
    }
}

impl<const N: usize, const D: usize> Line for LayInt8Pages<N, D> {
    type Info = ExtraInfo;
    const INFO: ExtraInfo = ExtraInfo {
        contract: Contract::of::<Self>(""),
        what: "rounds values of a KV cache of int8 to e4m3, as columns",
    };
}

/// Parameters of [`LayInt8Pages`]: those of [`LayFp8Pages`], whose `to` describes images, with `row_bytes` as
/// the distance of images; and the scales of values, one per slot and head.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayInt8PagesParams {
    /// Pages, lengths and images.
    pub lay: LayFp8PagesParams,
    /// The scales of values.
    pub scales: PerHead,
}
contract::no_padding! { LayInt8PagesParams { lay, scales } }
