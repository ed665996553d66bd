//! The keys of a work item on a latent cache: all keys of its sequence, or the keys of its query's list.
use super::batch::Batch;
use super::schedule::{Item, in_window};
use crate::lengths::Unchecked;
use crate::variant::MaskFn;
use attention_tile::{CacheRows, ListedRows, ListedWalk, PageWalk, Up};
use spec::{DecodeParams, Element, MaskKind, SparseParams};
use tile::Warp;
use tile::copy::TileWalk;
use tile::group::ThreadGroup;
use tile::mma::ColAcc;

/// The parameters of a kernel on a latent cache.
pub trait Latents: Batch + 'static {
    /// The walk of a group through the keys of a work item.
    type Walk<'p, E: Element, const R: usize, const C: usize, W: ThreadGroup>: TileWalk<E, R, C, W>
    where
        Self: 'p;
    /// Starts the walk.
    fn walk<E: Element, const R: usize, const C: usize, W: ThreadGroup>(
        &self,
        item: &Item,
        group: &W,
    ) -> Self::Walk<'_, E, R, C, W>;
    /// All queries of a work item, of which `first` is the first one, see the keys before this one, unless
    /// [`Self::hide`] hides them. Each query sees at least the keys that earlier queries see.
    fn all_see<Mask: MaskFn>(&self, item: &Item, first: u32) -> i32;
    /// What says which of this lane's two rows of S^T exist.
    type Slots: Copy;
    /// Loads it for a stage of `KEYS` tiles of keys: `place` is the stage, and the tile in it.
    fn load_slots<const KEYS: usize>(&self, item: &Item, place: [u32; 2], warp: Warp) -> Self::Slots;
    /// Hides the rows that do not exist.
    fn hide<const G: usize>(&self, item: &Item, s: &mut ColAcc<1, G>, slots: Self::Slots);
}

impl Latents for DecodeParams {
    type Walk<'p, E: Element, const R: usize, const C: usize, W: ThreadGroup> = PageWalk<'p, E, R, C, W, Up>;

    #[inline(always)]
    fn walk<E: Element, const R: usize, const C: usize, W: ThreadGroup>(
        &self,
        item: &Item,
        group: &W,
    ) -> PageWalk<'_, E, R, C, W, Up> {
        let [keys, _] = CacheRows::new(&self.cache, item.sequence, item.kv_head, item.keys);
        PageWalk::new(keys, item.split, Up(item.splits), group)
    }
    #[inline(always)]
    fn all_see<Mask: MaskFn>(&self, item: &Item, first: u32) -> i32 {
        in_window::<Mask>(self, first, item.keys).end
    }
    type Slots = ();
    #[inline(always)]
    fn load_slots<const KEYS: usize>(&self, _: &Item, _: [u32; 2], _: Warp) {}
    #[inline(always)]
    fn hide<const G: usize>(&self, _: &Item, _: &mut ColAcc<1, G>, (): ()) {}
}

/// The keys of a work item's list.
#[inline(always)]
pub fn listed<'p>(p: &'p SparseParams, item: &Item) -> ListedRows<'p> {
    let list = item.sequence * p.decode.order.kv_heads.get() + item.kv_head;
    ListedRows::new(&p.decode.cache, &p.slots, [list, item.keys], item.kv_head)
}

impl Latents for SparseParams {
    type Walk<'p, E: Element, const R: usize, const C: usize, W: ThreadGroup> = ListedWalk<'p, E, R, C, W>;

    #[inline(always)]
    fn walk<E: Element, const R: usize, const C: usize, W: ThreadGroup>(
        &self,
        item: &Item,
        group: &W,
    ) -> ListedWalk<'_, E, R, C, W> {
        ListedWalk::new(listed(self, item), item.split, Up(item.splits), group)
    }
    #[inline(always)]
    fn all_see<Mask: MaskFn>(&self, _: &Item, _: u32) -> i32 {
        const { assert!(matches!(Mask::KIND, MaskKind::Full), "a query's list is its mask") }
        i32::MAX
    }
    type Slots = [u32; 2];
    #[inline(always)]
    fn load_slots<const KEYS: usize>(&self, item: &Item, [stage, tile]: [u32; 2], warp: Warp) -> [u32; 2] {
        listed(self, item).load_lane((stage * KEYS as u32 + tile) * 16, warp)
    }
    #[inline(always)]
    fn hide<const G: usize>(&self, item: &Item, s: &mut ColAcc<1, G>, slots: [u32; 2]) {
        s.keep_rows(slots.map(|slot| listed(self, item).names(slot)))
    }
}

impl Batch for SparseParams {
    type Own<'a> = &'a DecodeParams;

    #[inline(always)]
    fn decode(&self) -> &DecodeParams {
        &self.decode
    }
    #[inline(always)]
    fn most(&self) -> u32 {
        self.decode.most()
    }
    #[inline(always)]
    fn keys(&self, i: u32) -> Unchecked {
        self.decode.keys(i)
    }
    #[inline(always)]
    fn takes(&self, i: u32) -> bool {
        self.decode.takes(i)
    }
    #[inline(always)]
    fn own(&self, i: u32) -> &DecodeParams {
        self.decode.own(i)
    }
}
