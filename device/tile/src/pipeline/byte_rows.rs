//! Rows of eight bits that the warps of a warpgroup copy into a stage of sixteen bits, and convert there in
//! place.
//!
//! A stage has a panel for each 64 columns. The stored bytes of two panels lie in one panel: the last ones of
//! those that they become. Scales lie in the first panel, which no stored byte has. Columns that are stored
//! with sixteen bits lie where products read them.
//!
//! A warp copies and converts its own 16 rows: eight rows at once, which it reads before it writes them.
//! The conversion therefore needs no other shared memory, and no barrier but the warp's.
use crate::Warp;
use crate::copy::Transport;
use crate::group::sealed::Sealed;
use crate::group::{Refillers, ThreadGroup};
use crate::layout::CHUNK;
use crate::mma::WarpgroupCore;
use crate::pipeline::refilled::{Refill, Settle};
use crate::pipeline::stage_converter::{source, target};
use crate::shared::{ConvertTo, SharedTile};
use contract::{Bf16, E4m3, E4m3Scaled, Element, F16, Native};
use core::marker::PhantomData;
use cuda_std::cp_async::{self, cp_async_128_or_zero};
use cuda_std::math::{pack_bf16, unpack_f16};
use cuda_std::memory::{ld_shared_v2_b32, ld_shared_v4_b32, st_shared_v4_b32};
use cuda_std::{mbarrier, tma};

/// Stored rows that convert to rows of `E`.
pub trait ByteRow<E>: Element {
    /// The value of a stored number, divided by the value of the converted number.
    const FACTOR: f32;
    /// Number of columns that are stored with eight bits, if others follow.
    const NARROW: usize = usize::MAX;
    /// The chunk of the four scales, of which each has 128 columns, if rows have scales. Columns of sixteen
    /// bits follow them.
    const SCALES: Option<u32> = None;
    /// Converts 16 numbers with this scale, in order.
    fn convert(x: [u32; 4], scale: f32) -> [[u32; 4]; 2];
}

impl<E> ByteRow<E> for Native<E4m3>
where
    Self: ConvertTo<E>,
{
    const FACTOR: f32 = <Self as ConvertTo<E>>::FACTOR;
    #[inline(always)]
    fn convert(x: [u32; 4], _: f32) -> [[u32; 4]; 2] {
        let [[a, b], [c, d], [e, f], [g, h]] = x.map(<Self as ConvertTo<E>>::convert);
        [[a, b, c, d], [e, f, g, h]]
    }
}

impl ByteRow<Bf16> for Native<E4m3Scaled> {
    const FACTOR: f32 = 1.0;
    const NARROW: usize = E4m3Scaled::SCALED;
    const SCALES: Option<u32> = Some(E4m3Scaled::SCALED as u32 / CHUNK);
    /// Rounds each number once.
    #[inline(always)]
    fn convert(x: [u32; 4], scale: f32) -> [[u32; 4]; 2] {
        const { assert!(<Native<E4m3> as ConvertTo<F16>>::FACTOR == 1.0, "the conversion has no factor") }
        let scaled = |pair| {
            let [lo, hi] = unpack_f16(pair);
            pack_bf16(lo * scale, hi * scale)
        };
        let of = |x| <Native<E4m3> as ConvertTo<F16>>::convert(x).map(scaled);
        let [[a, b], [c, d], [e, f], [g, h]] = x.map(of);
        [[a, b, c, d], [e, f, g, h]]
    }
}

/// Rows of type `S`, of which a stage has the columns from base tile `FIRST` on.
pub struct ByteRows<S, const FIRST: usize>(PhantomData<S>);

impl<S, const FIRST: usize> Sealed for ByteRows<S, FIRST> {}
impl<S: Element, const FIRST: usize> Transport for ByteRows<S, FIRST> {
    /// Each warp of the warpgroup arrives once.
    const ARRIVALS: u32 = 4;
    /// The warps fence what they write.
    const BY_THREADS: bool = false;
    const ROUND: usize = 1;
}

/// Rows of a stage in global memory, which a warp has found.
///
/// # Safety
/// - `row` returns a multiple of 16, from which on this number of chunks may be read.
pub unsafe trait FoundRows {
    /// The address of row `row`, and its number of chunks, which is 0 if the row does not exist. All lanes of
    /// a warp call this function, for rows of the warp.
    fn row(&self, row: u32, warp: Warp) -> (u64, u32);
}

/// A source of rows of eight bits.
pub struct FromRows<Rows>(pub Rows);

/// The places of rows of type `S` in a stage of `C` base tiles of columns, from base tile `FIRST` on.
struct Places<S, const FIRST: usize, const C: usize>(PhantomData<S>);

impl<S, const FIRST: usize, const C: usize> Places<S, FIRST, C> {
    /// Bytes of a panel.
    const PANEL: u32 = ROWS * 128;

    /// Number of panels whose columns are stored with eight bits.
    const fn narrow<E>() -> u32
    where
        S: ByteRow<E>,
    {
        let (first, columns) = (FIRST * 16, C * 16);
        assert!(first.is_multiple_of(128), "a scale has the columns of two panels");
        let narrow = if first + columns < S::NARROW { columns } else { S::NARROW - first };
        assert!(narrow.is_multiple_of(64), "panels have 64 columns");
        narrow as u32 / 64
    }
    /// The first panel with stored bytes. Panels 2 i and 2 i + 1 take the bytes of the i-th of them, and of
    /// panels that the warp has read before.
    const fn first_stored<E>() -> u32
    where
        S: ByteRow<E>,
    {
        let first = Self::narrow::<E>() / 2;
        assert!(first > 0, "the scales' panel has no stored byte");
        first
    }
}

/// Rows of a stage, and of a warp.
const ROWS: u32 = 64;
const OF_WARP: u32 = 16;

/// Byte offset of a chunk in a panel.
#[inline(always)]
const fn in_panel(row: u32, chunk: u32) -> u32 {
    row * 128 + (chunk ^ (row % 8)) * CHUNK
}

impl<Rows> Sealed for FromRows<Rows> {}
impl<E: WarpgroupCore, S: ByteRow<E>, Rows: FoundRows, const FIRST: usize, const C: usize>
    Refill<SharedTile<E, 4, C>, ByteRows<S, FIRST>> for FromRows<Rows>
{
    /// Starts the copies of the rows as they are stored.
    #[inline(always)]
    unsafe fn start(self, to: u32, _: u32, group: &Refillers) {
        let (warp, FromRows(rows)) = (group.warp().forget_lane(), self);
        let own = warp.index % 4 * OF_WARP;
        let first = const { FIRST as u32 * 16 / CHUNK };
        let narrow = const { Places::<S, FIRST, C>::narrow::<E>() };
        let at = const { Places::<S, FIRST, C>::first_stored::<E>() };
        let panel = |panel: u32| to + panel * Places::<S, FIRST, C>::PANEL;
        // SAFETY: the chunk may be read if it is one of the row's. The caller says that the stage may be
        // written.
        let copy = |to: u32, (from, chunks): (u64, u32), chunk: u32| unsafe {
            cp_async_128_or_zero(to, from.wrapping_add((chunk * CHUNK) as u64), chunk < chunks)
        };
        for four in 0..OF_WARP / 4 {
            let (row, chunk) = (own + four * 4 + warp.lane / 8, warp.lane % 8);
            let found = rows.row(row, warp);
            for i in 0..narrow / 2 {
                copy(panel(at + i) + in_panel(row, chunk), found, first + i * 8 + chunk);
            }
            if let Some(scales) = S::SCALES {
                for i in narrow..C as u32 / 4 {
                    copy(panel(i) + in_panel(row, chunk), found, scales + 1 + (i - narrow) * 8 + chunk);
                }
            }
        }
        // The bytes of a last panel without a neighbour fill half of a panel.
        for eight in 0..narrow % 2 * (OF_WARP / 8) {
            let (row, chunk) = (own + eight * 8 + warp.lane / 4, warp.lane % 4);
            let found = rows.row(row, warp);
            copy(panel(narrow - 1) + in_panel(row, chunk), found, first + narrow / 2 * 8 + chunk);
        }
        if let Some(scales) = S::SCALES {
            // Every second lane copies the scales to a chunk that nobody reads: a branch would cost more.
            let row = own + warp.lane % OF_WARP;
            copy(to + in_panel(row, warp.lane / OF_WARP), rows.row(row, warp), scales);
        }
    }
}

impl<E: WarpgroupCore, S: ByteRow<E>, const FIRST: usize, const C: usize> Settle<SharedTile<E, 4, C>>
    for ByteRows<S, FIRST>
{
    const CONVERTS: bool = true;
    /// Waits for this thread's copies, converts the warp's rows, and arrives.
    #[inline(always)]
    unsafe fn settle(stage: u32, full: u32, group: &Refillers) {
        // The places of a lane would otherwise stay in registers beside a product's accumulators.
        let warp = group.warp().forget_lane();
        let narrow = const { Places::<S, FIRST, C>::narrow::<E>() };
        let at = const { Places::<S, FIRST, C>::first_stored::<E>() };
        let panel = |panel: u32| panel * Places::<S, FIRST, C>::PANEL;
        cp_async::wait_all();
        warp.sync();
        for eight in 0..OF_WARP / 8 {
            let rows = stage + (warp.index % 4 * OF_WARP + eight * 8) * 128;
            // SAFETY: chunks of the warp's own rows, whose copies have landed for all of its lanes.
            let scales = unsafe {
                match S::SCALES {
                    Some(_) => {
                        let of_row = rows + in_panel(target(warp.lane) / 128, 0);
                        ld_shared_v2_b32(of_row + const { FIRST as u32 * 16 / 128 * 4 })
                    }
                    None => [0; 2],
                }
            };
            // The bytes of two panels at once. They overwrite bytes that the warp has read before.
            for i in 0..narrow.div_ceil(2) {
                let both = 2 * i + 1 < narrow;
                let words = [0, 1].map(|half| {
                    if half == 1 && !both {
                        return [0; 4];
                    }
                    // SAFETY: as above.
                    unsafe { ld_shared_v4_b32(rows + panel(at + i) + source(warp.lane, half)) }
                });
                // All lanes have read these bytes, and the scales, before a lane writes.
                warp.sync();
                for half in 0..1 + both as u32 {
                    let scale = f32::from_bits(scales[i as usize % 2]);
                    let [a, b] = S::convert(words[half as usize], scale);
                    let to = rows + panel(2 * i + half) + target(warp.lane);
                    // SAFETY: chunks of the warp's own rows. Products read them after all warps have arrived.
                    unsafe {
                        st_shared_v4_b32(to, a);
                        st_shared_v4_b32(to ^ CHUNK, b);
                    }
                }
            }
        }
        // Products read in another proxy.
        tma::fence_proxy_async();
        warp.sync();
        // SAFETY: each warp arrives once per phase, and the phase cannot end without this arrival.
        unsafe { mbarrier::arrive_if(full, warp.lane == 0) }
    }
}
