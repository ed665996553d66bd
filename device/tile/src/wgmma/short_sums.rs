//! Products of e4m3, and their sums.
//!
//! Hopper's tensor cores add products of e4m3 with 13 bits of fraction, and cut the rest off. A long sum of
//! numbers of one sign is therefore too small: by 33 % after 16,384 keys of equal weights, by 71 % after
//! 65,536 (H100). [`ShortSums`] therefore holds at most [`MOST_ROWS`] products in the tensor core's
//! accumulator. Then it adds the accumulator to a total in f32, and starts anew. A product takes a
//! [`SumsRoom`], so no kernel can add more.
use crate::Warp;
use crate::group::Warpgroup;
use crate::mma::{Acc, ByteFrag, RowVec};
use crate::pipeline::{Consumer, Specialized, StageGuard};
use crate::shared::{Place, SharedTile, SharedTiles};
use crate::tma::{Tma, TmaTransport};
use crate::wgmma::ByteSums;
use crate::wgmma::sealed::Issue;
use contract::{E4m3, FastDiv};
use cuda_std::math::fma;
use cuda_std::memory::{ld_shared_v4_b32, st_shared_v4_b32};
use cuda_std::wgmma;

/// The most products that a tensor core adds: the error of a sum of equal terms is then 0.03 %.
pub const MOST_ROWS: u32 = 512;

/// Shared memory for the totals of `W` warpgroups, which have 64 rows and `D` base tiles of columns. Each
/// thread keeps its own words.
pub struct Totals<const D: usize, const W: usize> {
    base: u32,
}

/// The sums of a warpgroup's rows: the accumulator of the latest products, and a total in shared memory.
pub struct ShortSums<const D: usize> {
    acc: Acc<1, D>,
    /// Number of products in the accumulator.
    rows: u32,
    /// The address of this thread's words of the total.
    at: u32,
    /// Whether there is a total.
    has_total: bool,
    /// Factor of the total's rows.
    factor: RowVec<1>,
}

/// [`ShortSums`] that can take `K` base tiles of rows of products. A product has as many, and takes the room:
///
/// ```
/// use contract::E4m3;
/// use tile::{mma::ByteFrag, pipeline::Consumer, shared::SharedTile, tma::Tma, wgmma::*};
///
/// type Values = Consumer<SharedTile<E4m3, 8, 8>, 2, Tma>;
/// type P = ByteFrag<1, 8>;
/// fn of<'p>(sums: &'p mut ShortSums<8>, p: &'p P, v: &'p mut Values) -> AbBytes<'p, 8, 8, 2> {
///     AbBytes(sums.room::<8>(), p, v)
/// }
/// ```
///
/// ```compile_fail
/// # use contract::E4m3;
/// # use tile::{mma::ByteFrag, pipeline::Consumer, shared::SharedTile, tma::Tma, wgmma::*};
/// #
/// # type Values = Consumer<SharedTile<E4m3, 8, 8>, 2, Tma>;
/// type P = ByteFrag<1, 8>;
/// fn of<'p>(sums: &'p mut ShortSums<8>, p: &'p P, v: &'p mut Values) -> AbBytes<'p, 8, 8, 2> {
///     AbBytes(sums.room::<4>(), p, v)
/// }
/// ```
pub struct SumsRoom<'s, const D: usize, const K: usize>(&'s mut ShortSums<D>);

// SAFETY: the layout has 32 bytes per thread for each base tile of columns.
unsafe impl<const D: usize, const W: usize> Place for Totals<D, W> {
    const BYTES: usize = W * Totals::<D, W>::OF_GROUP as usize;
    const ALIGN: usize = 16;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        Totals { base }
    }
}

impl<const D: usize, const W: usize> Specialized for Totals<D, W> {
    type Producer = ();
    type Converter = ();
    type Consumer = Self;
    const PRODUCERS: u32 = 1;
    #[inline(always)]
    unsafe fn init(&self, _: u32) {}
    #[inline(always)]
    unsafe fn producer(self, _: Warp) {}
    #[inline(always)]
    unsafe fn converter(self, _: Warp) {}
    #[inline(always)]
    unsafe fn consumer(self, _: Warp) -> Self {
        self
    }
}

impl<const D: usize, const W: usize> Totals<D, W> {
    /// Bytes of a warpgroup: two vectors of each thread for each base tile of columns.
    const OF_GROUP: u32 = (D * 2) as u32 * VECTORS;

    /// The sums of the warpgroup's rows, which are zero.
    #[inline(always)]
    pub fn sums(self, group: &Warpgroup<W>) -> ShortSums<D> {
        let thread = group.warp.index % 4 * 32 + group.warp.lane;
        ShortSums {
            acc: Acc::cleared(),
            rows: 0,
            at: self.base + group.index * Self::OF_GROUP + thread * 16,
            has_total: false,
            factor: RowVec::splat(1.0),
        }
    }
}

/// Bytes of one vector of every thread of a warpgroup.
const VECTORS: u32 = 128 * 16;

impl<const D: usize> ShortSums<D> {
    /// Adds the accumulator to the total, and clears the accumulator.
    #[inline(always)]
    fn empty(&mut self) {
        if self.has_total {
            self.add_total();
        }
        for n in 0..D {
            for h in 0..2 {
                let x = self.acc.0[0][n][h].map(f32::to_bits);
                // SAFETY: these are this thread's own words.
                unsafe { st_shared_v4_b32(self.word(n, h), x) }
            }
        }
        self.acc = Acc::cleared();
        (self.rows, self.has_total, self.factor) = (0, true, RowVec::splat(1.0));
    }

    /// Adds the total to the accumulator.
    #[inline(always)]
    fn add_total(&mut self) {
        for n in 0..D {
            for h in 0..2 {
                // SAFETY: these are this thread's own words, which it has written.
                let total = unsafe { ld_shared_v4_b32(self.word(n, h)) };
                for (i, x) in self.acc.0[0][n][h].iter_mut().enumerate() {
                    *x = fma(f32::from_bits(total[i]), self.factor.0[0][i / 2], *x);
                }
            }
        }
    }

    #[inline(always)]
    const fn word(&self, n: usize, h: usize) -> u32 {
        self.at + (2 * n + h) as u32 * VECTORS
    }
}

/// If the accumulator has no room, it is added to the total first. The second product is in flight while the
/// warpgroup computes with the first one.
impl<const D: usize> ByteSums<D> for ShortSums<D> {
    type Place<const W: usize> = Totals<D, W>;

    #[inline(always)]
    fn new<const W: usize>(totals: Totals<D, W>, _: FastDiv, group: &Warpgroup<W>) -> Self {
        totals.sums(group)
    }
    #[inline(always)]
    fn scale_rows(&mut self, by: &RowVec<1>) {
        self.acc.scale_rows(by);
        self.factor = self.factor.zip(*by, |factor, by| factor * by);
    }
    #[inline(always)]
    fn take(&mut self) -> Acc<1, D> {
        if self.has_total {
            self.add_total();
        }
        let sums = self.acc;
        (self.acc, self.rows, self.has_total) = (Acc::cleared(), 0, false);
        self.factor = RowVec::splat(1.0);
        sums
    }
    type Room<'s, const K: usize> = SumsRoom<'s, D, K>;
    #[inline(always)]
    fn room<const K: usize>(&mut self) -> SumsRoom<'_, D, K> {
        const { assert!(K as u32 * 16 <= MOST_ROWS, "a stage has more products than a sum may have") }
        if self.rows + K as u32 * 16 > MOST_ROWS {
            self.empty();
        }
        self.rows += K as u32 * 16;
        SumsRoom(self)
    }
    #[inline(always)]
    fn add<const W: usize, const K: usize, const S: usize, By: TmaTransport>(
        room: SumsRoom<'_, D, K>,
        (a, b): (&ByteFrag<1, K>, &mut Consumer<SharedTile<E4m3, D, K>, S, By>),
        group: &mut Warpgroup<W>,
    ) {
        group.run(AbBytes(room, a, b))
    }
    #[inline(always)]
    fn overlap<
        By: TmaTransport,
        ByB: TmaTransport,
        State,
        R,
        T,
        const W: usize,
        const K: usize,
        const S: usize,
    >(
        first: AbtBytes<'_, K, D, W, S, By>,
        room: Self::Room<'_, K>,
        (a, b): (&ByteFrag<1, K>, &mut Consumer<SharedTile<E4m3, D, K>, S, ByB>),
        group: &mut Warpgroup<W>,
        state: &mut State,
        meanwhile: impl FnOnce(&mut State, &mut Acc<1, K>) -> (bool, R),
        then: impl FnOnce(&mut State, &Acc<1, K>, &mut Self, R, bool) -> T,
    ) -> T {
        group.overlap(first, AbBytes(room, a, b), state, meanwhile, then)
    }
}

/// The product `acc = a b^T` of e4m3. `a` is the warpgroup's own tile of a guarded stage, and `b` is the next
/// stage of a pipeline.
pub struct AbtBytes<'p, const N: usize, const K: usize, const W: usize, const S: usize, By = Tma>(
    pub &'p mut Acc<1, N>,
    pub &'p StageGuard<'p, SharedTiles<E4m3, 4, K, W>>,
    pub &'p mut Consumer<SharedTile<E4m3, N, K>, S, By>,
);

/// The product `sums += a b` of e4m3. The next stage of a pipeline contains `b^T`, whose rows run along k in
/// the order of [`byte_of_column`](crate::layout::byte_of_column).
pub struct AbBytes<'p, const N: usize, const K: usize, const S: usize, By = Tma>(
    pub SumsRoom<'p, N, K>,
    pub &'p ByteFrag<1, K>,
    pub &'p mut Consumer<SharedTile<E4m3, N, K>, S, By>,
);

// SAFETY: `issue` starts one group, which accesses the accumulator, the tile of `a` and the stage.
unsafe impl<const N: usize, const K: usize, const W: usize, const S: usize, By: TmaTransport> Issue<W>
    for AbtBytes<'_, N, K, W, S, By>
{
    type Acc = Acc<1, N>;
    #[inline(always)]
    fn wait(&self) {
        self.2.wait_full()
    }
    #[inline(always)]
    unsafe fn issue(&mut self, group: u32) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { self.issue_over(None, group) }
    }
    #[inline(always)]
    unsafe fn settle<const LEFT: u32>(&mut self) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { wgmma::wait_group::<LEFT, N>(&mut self.0.0[0]) }
    }
    #[inline(always)]
    unsafe fn release(&mut self) {
        self.2.release()
    }
    #[inline(always)]
    fn acc(&mut self) -> &mut Acc<1, N> {
        self.0
    }
}

impl<const N: usize, const K: usize, const W: usize, const S: usize, By: TmaTransport>
    AbtBytes<'_, N, K, W, S, By>
{
    /// [`Issue::issue`], from zero also if there is a `never`, which is 0. ptxas does not know it, and keeps
    /// what reads the accumulator's registers before this product.
    ///
    /// # Safety
    /// - The preconditions of [`Issue::issue`] hold.
    #[inline(always)]
    pub(super) unsafe fn issue_over(&mut self, never: Option<u32>, group: u32) {
        const { assert!(wgmma::has_width_of_bytes(N) && K.is_multiple_of(2), "no product has this width") }
        let (a, b) = (self.1.tile(group).operand(), self.2.descriptor().operand());
        // SAFETY: the caller keeps the preconditions. Both tiles may be read: a guard keeps tile `a`, and
        // tile `b` has landed.
        unsafe {
            wgmma::fence();
            // A k-step has two base tiles.
            for k in (0..K).step_by(2) {
                let a = a + SharedTile::<E4m3, 4, K>::along_rows(k);
                let b = b + SharedTile::<E4m3, N, K>::along_rows(k);
                match never {
                    Some(never) if k == 0 => wgmma::mma_async_abt_e4m3_if(&mut self.0.0[0], a, b, never),
                    _ => wgmma::mma_async_abt_e4m3(&mut self.0.0[0], a, b, k > 0),
                }
            }
            wgmma::commit_group();
        }
    }
}

// SAFETY: `issue` starts one group, which accesses the accumulator, the registers of `a` and the stage.
unsafe impl<const N: usize, const K: usize, const W: usize, const S: usize, By: TmaTransport> Issue<W>
    for AbBytes<'_, N, K, S, By>
{
    type Acc = ShortSums<N>;
    #[inline(always)]
    fn wait(&self) {
        self.2.wait_full()
    }
    #[inline(always)]
    unsafe fn issue(&mut self, _: u32) {
        const { assert!(wgmma::has_width_of_bytes(N) && K.is_multiple_of(2), "no product has this width") }
        let b = self.2.descriptor().operand();
        // LLVM keeps some registers in pairs of 64 bits. It must take the pairs apart before the fence.
        for k in 0..K / 2 {
            wgmma::hold(&self.1.k_step(k, 0));
        }
        // SAFETY: the caller keeps the preconditions; the stage has landed.
        unsafe {
            wgmma::fence();
            for k in 0..K / 2 {
                let b = b + SharedTile::<E4m3, N, K>::along_rows(2 * k);
                wgmma::mma_async_ab_e4m3(&mut self.0.0.acc.0[0], self.1.k_step(k, 0), b, true);
            }
            wgmma::commit_group();
        }
    }
    #[inline(always)]
    unsafe fn settle<const LEFT: u32>(&mut self) {
        // SAFETY: the caller keeps the preconditions. The product reads `a` until this call.
        unsafe { wgmma::wait_group::<LEFT, N>(&mut self.0.0.acc.0[0]) }
        for k in 0..K / 2 {
            wgmma::hold(&self.1.k_step(k, 0));
        }
    }
    #[inline(always)]
    unsafe fn release(&mut self) {
        self.2.release()
    }
    #[inline(always)]
    fn acc(&mut self) -> &mut ShortSums<N> {
        self.0.0
    }
}
