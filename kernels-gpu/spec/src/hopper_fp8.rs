//! Forward attention on Hopper with products of e4m3.
use crate::info::EIGHT_BIT_PANEL;
use crate::variant::no_variant;
use crate::*;
use core::marker::PhantomData;

/// Forward attention of [`Precision::Fp8`] in the schedule of [`FwdHopper`]: Q, K, V and P are e4m3, O is
/// `E`. The tensor maps of the parameters describe e4m3: Q and K as they are, and V transposed, in tiles of
/// `16 D` columns of V with `16 N` keys, in the order of [`RoundFp8`]. On a KV cache, they describe keys in
/// the pages, and one tensor of all sequences' values: a sequence has as many tiles as the longest one may
/// have.
///
/// The totals of O lie in shared memory, or, with more than 128 columns, in registers.
pub struct FwdHopperFp8<E, Mask, const W: usize, const N: usize, const D: usize, const STAGES: usize>(
    PhantomData<(E, Mask)>,
);

/// Whether O of `d` base tiles of columns leaves no shared memory for totals.
const fn is_wide(d: usize) -> bool {
    d > 8
}

/// Columns per box of e4m3 tensors whose rows have this number of columns.
pub const fn fp8_box_columns(row: u32) -> u32 {
    if row < EIGHT_BIT_PANEL { row } else { EIGHT_BIT_PANEL }
}

/// Parameters of [`FwdHopperFp8`], around those of a kernel for 16 bits.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fp8Params<F = HopperParams> {
    /// The parameters of the schedule.
    pub forward: F,
    /// Scales of Q, K and V: one of each batch and key head.
    pub scales: [PerHead; 3],
    /// Numbers that the LSE of each row lacks, in the layout `[batch, heads, queries]`: products of the row
    /// and what was subtracted from all keys, in natural logarithms. Address 0: none.
    pub lse_lacks: Lse,
    /// Padding: 0.
    pub reserved: u64,
}
contract::no_padding! {
    Fp8Params<HopperParams> { forward, scales, lse_lacks, reserved }
    Fp8Params<VarlenParams<HopperParams<RaggedMap>>> { forward, scales, lse_lacks, reserved }
    Fp8Params<HopperPagedParams> { forward, scales, lse_lacks, reserved }
}
no_variant!(Fp8Params<F>, F);

/// Scales of queries, too.
impl CacheScales for [PerHead; 3] {
    type Hopper = Fp8Params<HopperPagedParams>;
}

impl<H, F: AsRef<H>> AsRef<H> for Fp8Params<F> {
    #[inline(always)]
    fn as_ref(&self) -> &H {
        self.forward.as_ref()
    }
}

impl<F: Scheduled> Scheduled for Fp8Params<F> {
    fn order(&self) -> &TileOrder {
        self.forward.order()
    }
    fn blocks(&self) -> u32 {
        self.forward.blocks()
    }
}

/// The kernel for products of the inputs' elements.
type Plain<E, Mask, const W: usize, const N: usize, const D: usize, const STAGES: usize> =
    FwdHopper<E, Mask, W, N, D, STAGES, true>;

impl<E: Element, Mask: MaskMarker, const W: usize, const N: usize, const D: usize, const STAGES: usize> Kernel
    for FwdHopperFp8<E, Mask, W, N, D, STAGES>
{
    type Params = Fp8Params;
    const TARGET: Target = Target::Exactly(90);
    const THREADS: u32 = 128 * (W as u32 + 1);
    /// Two tiles of Q and all stages, of one byte per element; O; the totals of O in f32.
    const SMEM_BYTES: usize = {
        let of_total = if is_wide(D) { 0 } else { 4 };
        256 * (2 * 4 * W * D + 2 * N * D * STAGES) + 256 * 4 * W * D * (E::BYTES + of_total) + 3 * 1024
    };
    const PARAM_ALIGN: u32 = TensorMap::ALIGN;
    /// Of Q, of K, of V as columns, and of O.
    const BOXES: &'static [[u32; 2]] = {
        assert!(
            matches!((D, N), (4 | 8, 8) | (16, 4)),
            "a row of V's tiles has 128 bytes or 64, and one of Q's these or 256"
        );
        let columns = fp8_box_columns(D as u32 * 16);
        &[
            [columns, AttnInfo::Q_BOX_ROWS],
            [columns, N as u32 * 16],
            [N as u32 * 16, D as u32 * 16],
            [info::panel(D as u32 * 16), AttnInfo::Q_BOX_ROWS],
        ]
    };
    fn grid(params: &Fp8Params) -> [u32; 3] {
        [params.forward.rounds.blocks(), 1, 1]
    }
}

impl<E: Element, Mask: MaskMarker, const W: usize, const N: usize, const D: usize, const STAGES: usize> Line
    for FwdHopperFp8<E, Mask, W, N, D, STAGES>
{
    type Info = AttnInfo;
    const INFO: AttnInfo = AttnInfo {
        contract: Contract::of::<Self>(""),
        keys: Keys::Quantised,
        ..<Plain<E, Mask, W, N, D, STAGES> as Line>::INFO
    };
}

impl<E: Element, Mask: MaskMarker, const W: usize, const N: usize, const D: usize, const STAGES: usize>
    AttnKernel for FwdHopperFp8<E, Mask, W, N, D, STAGES>
{
    type Isa = Sm90a;
    type Mask = Mask;
}

impl<E: Element, Mask: MaskMarker, const W: usize, const N: usize, const D: usize, const STAGES: usize>
    Forward for FwdHopperFp8<E, Mask, W, N, D, STAGES>
{
    type Scales = [PerHead; 3];
    type OnVarlen = Fp8Params<VarlenParams<HopperParams<RaggedMap>>>;
}

/// Rounds Q, K and V of type `E` to e4m3 for [`FwdHopperFp8`] with `N` base tiles of keys per stage: Q and K,
/// less the mean of 64 evenly spaced keys unless a softcap needs it, with their columns in the order of
/// `byte_of_column`; V as columns, whose keys have this order. Each batch and key head has one scale of each
/// tensor. Two launches: the first one measures the largest magnitudes, the second one rounds.
pub struct RoundFp8<E, const N: usize, const D: usize>(PhantomData<E>);

/// Number of warps per block of [`RoundFp8`].
const WARPS: u32 = 4;
/// Number of shares of a head whose largest magnitudes are measured apart, one per warp.
pub const FP8_SHARES: u32 = 128;

impl<E: Element, const N: usize, const D: usize> Kernel for RoundFp8<E, N, D> {
    type Params = RoundFp8Params;
    const TARGET: Target = Target::From(89);
    const THREADS: u32 = WARPS * 32;
    const SMEM_BYTES: usize = 0;
    const BLOCKS_PER_SM: u32 = 4;
    fn grid(params: &RoundFp8Params) -> [u32; 3] {
        [params.grid(), 1, 1]
    }
}

impl<E: Element, const N: usize, const D: usize> Line for RoundFp8<E, N, D> {
    type Info = QuantiseInfo;
    const INFO: QuantiseInfo = QuantiseInfo {
        contract: Contract::of::<Self>(""),
        precision: Precision::Fp8,
        dtype: E::DTYPE,
        keys: N as u32 * 16,
        head_dim: D as u32 * 16,
    };
}

/// Parameters of [`RoundFp8`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundFp8Params {
    /// Q, K and V.
    pub from: [Tensor; 3],
    /// Their e4m3, which the kernel writes. V has a row for each column and block of keys.
    pub to: [Tensor; 3],
    /// Largest magnitudes of Q, K and V: [`FP8_SHARES`] of each batch and key head.
    pub maxima: [Lse; 3],
    /// The scales, which the kernel writes: one of each batch and key head.
    pub scales: [Lse; 3],
    /// The kernel writes here what the LSE of each row lacks. It writes nothing at address 0.
    pub lse_lacks: Lse,
    /// The tensors' sequences.
    pub sequences: Fp8Sequences,
    /// Blocks per head of queries and of keys.
    pub blocks: [FastDiv; 2],
    /// Query heads, and key heads.
    pub heads: [FastDiv; 2],
    /// Query heads per key head.
    pub group: FastDiv,
    /// Number of blocks of queries, and of keys, in all batches and heads. Some blocks of varlen tensors have
    /// no rows. With no blocks of keys, the launch rounds queries alone, whose columns keep their order.
    pub tiles: [u32; 2],
    /// Factor of products of Q and K.
    pub scale: f32,
    /// Number of tensors, Q alone or all three, whose magnitudes the launch measures; 0 if it rounds.
    pub measures: u32,
    /// 1 if keys keep their mean: a softcap needs the scores themselves.
    pub keeps_means: u32,
}
contract::no_padding! {
    RoundFp8Params {
        from, to, maxima, scales, lse_lacks, sequences, blocks, heads, group, tiles, scale, measures,
        keeps_means
    }
}

impl RoundFp8Params {
    /// Thread blocks of a launch.
    pub const fn grid(&self) -> u32 {
        let sequences = match self.sequences.blocks.count {
            0 => self.tiles[0] / (self.blocks[0].get() * self.heads[0].get()),
            count => count,
        };
        match self.measures {
            0 => self.tiles[0] + 2 * self.tiles[1],
            tensors => tensors * self.heads[1].get() * sequences * (FP8_SHARES / WARPS),
        }
    }
}

/// Lays values of e4m3 for [`FwdHopperFp8`] with `N` base tiles of keys per stage, as [`RoundFp8`] lays them:
/// as columns. A block of the kernel lays a block of keys of a head.
pub struct LayFp8<const N: usize, const D: usize>;

impl<const N: usize, const D: usize> Kernel for LayFp8<N, D> {
    type Params = LayFp8Params;
    const TARGET: Target = Target::Exactly(90);
    const THREADS: u32 = WARPS * 32;
    const SMEM_BYTES: usize = 0;
    fn grid(params: &LayFp8Params) -> [u32; 3] {
        [params.tiles, 1, 1]
    }
}

impl<const N: usize, const D: usize> Line for LayFp8<N, D> {
    type Info = ExtraInfo;
    const INFO: ExtraInfo =
        ExtraInfo { contract: Contract::of::<Self>(""), what: "lays values of e4m3 as columns" };
}

/// Parameters of [`LayFp8`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayFp8Params {
    /// V.
    pub v: Tensor,
    /// V as columns, which the kernel writes: a row for each column and block of keys.
    pub to: Tensor,
    /// The tensors' sequences.
    pub sequences: Fp8Sequences,
    /// Blocks of keys per head.
    pub blocks: FastDiv,
    /// Key heads per batch.
    pub heads: FastDiv,
    /// Number of blocks of keys in all batches and heads.
    pub tiles: u32,
    /// Padding: 0.
    pub reserved: u32,
}
contract::no_padding! { LayFp8Params { v, to, sequences, blocks, heads, tiles, reserved } }

/// [`LayFp8`] of the values in a KV cache.
pub struct LayFp8Pages<const N: usize, const D: usize>;

impl<const N: usize, const D: usize> Kernel for LayFp8Pages<N, D> {
    type Params = LayFp8PagesParams;
    const TARGET: Target = Target::Exactly(90);
    const THREADS: u32 = WARPS * 32;
    const SMEM_BYTES: usize = 0;
    fn grid(params: &LayFp8PagesParams) -> [u32; 3] {
        [params.tiles, 1, 1]
    }
}

impl<const N: usize, const D: usize> Line for LayFp8Pages<N, D> {
    type Info = ExtraInfo;
    const INFO: ExtraInfo = ExtraInfo {
        contract: Contract::of::<Self>(""),
        what: "lays values of a KV cache of e4m3 as columns",
    };
}

/// Parameters of [`LayFp8Pages`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayFp8PagesParams {
    /// The block table and the page size.
    pub cache: Cache,
    /// The values: a page is a batch.
    pub pages: Tensor,
    /// The values as columns, which the kernel writes: a sequence is a batch, with a row for each column and
    /// block of keys.
    pub to: Tensor,
    /// Number of keys of each sequence.
    pub lengths: Integers,
    /// Blocks of keys of the longest sequence.
    pub blocks: FastDiv,
    /// Key heads.
    pub heads: FastDiv,
    /// Number of blocks of keys of all sequences and heads, each as long as the longest one.
    pub tiles: u32,
    /// Maximum number of keys of a sequence.
    pub max_keys: u32,
}
contract::no_padding! { LayFp8PagesParams { cache, pages, to, lengths, blocks, heads, tiles, max_keys } }
