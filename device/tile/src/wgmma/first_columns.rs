//! Products of the columns of a tile that exist.
use crate::mma::{Acc, WarpgroupCore};
use crate::tma::TmaTransport;
use crate::wgmma::Abt;
use crate::wgmma::sealed::Issue;
use contract::Element;

/// [`Abt`] without padding: columns behind the first `C` base tiles are zero in both tiles.
pub struct AbtOfFirst<
    'p,
    E: Element,
    const N: usize,
    const K: usize,
    const W: usize,
    const S: usize,
    By,
    const C: usize,
>(Abt<'p, E, N, K, W, S, By>);

impl<'p, E: Element, const N: usize, const K: usize, const W: usize, const S: usize, By>
    Abt<'p, E, N, K, W, S, By>
{
    /// This product, if columns behind the first `C` base tiles are zero in one of the tiles.
    #[inline(always)]
    pub fn of_first<const C: usize>(self) -> AbtOfFirst<'p, E, N, K, W, S, By, C> {
        const { assert!(0 < C && C <= K, "the tiles have fewer columns") }
        AbtOfFirst(self)
    }
}

// SAFETY: `issue` starts one group, which accesses the accumulator, the tile of `a` and the stage.
unsafe impl<
    E: WarpgroupCore,
    const N: usize,
    const K: usize,
    const W: usize,
    const S: usize,
    By: TmaTransport,
    const C: usize,
> Issue<W> for AbtOfFirst<'_, E, N, K, W, S, By, C>
{
    type Acc = Acc<1, N>;
    #[inline(always)]
    fn wait(&self) {
        Issue::<W>::wait(&self.0)
    }
    #[inline(always)]
    unsafe fn issue(&mut self, group: u32) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { self.0.issue_steps::<C>(group) }
    }
    #[inline(always)]
    unsafe fn settle<const LEFT: u32>(&mut self) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { Issue::<W>::settle::<LEFT>(&mut self.0) }
    }
    #[inline(always)]
    unsafe fn release(&mut self) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { Issue::<W>::release(&mut self.0) }
    }
    #[inline(always)]
    fn acc(&mut self) -> &mut Acc<1, N> {
        Issue::<W>::acc(&mut self.0)
    }
}
