//! dK and dV of a block of keys, over all queries of all heads that share the keys.
//!
//! At large head dims, dK and dV of a warp's keys exceed its registers. Several split groups then have the
//! same keys. Each computes P^T and dS^T of its part of a stage's queries, and passes them to the others.
//! Each multiplies all of them with its share of the columns.
use crate::backward::gradient::{of_scores, probabilities};
use crate::backward::sequence::TileSequence;
use crate::entries::{Portable, Run};
use crate::forward::ByBlock;
use crate::rows::{Rows, Sequence};
use crate::variant::blocks::{At, BlockRange, Seen};
use crate::variant::transposed::Transposed;
use crate::variant::{MaskFn, Scores};
use spec::{BwdDkDv, BwdDkDvParams, BwdParams, Kernel, Tensor};
use tile::beside::{HeadValues, SharedValues};
use tile::copy::Walk;
use tile::exchange::Operands;
use tile::group::Capability;
use tile::mma::{Acc, Mma, Resident};
use tile::pipeline::{Ring, Unfilled};
use tile::shared::{SharedTile, SharedTiles};
use tile::{Block, Smem, shared_layout};

shared_layout! {
    /// A block of keys with its values.
    Keys / KeysSlot<E, M, D, DV> { k: SharedTile<E, M, D>, v: SharedTile<E, M, DV> }
}
shared_layout! {
    /// Queries with the gradient of their output, a tile for each split group; beside them, minus LSE and
    /// delta.
    QueryStage / QuerySlot<E, N, TEAMS, D, DV> {
        q: SharedTiles<E, N, D, TEAMS>, d_o: SharedTiles<E, N, DV, TEAMS>, beside: SharedValues<N, 2, TEAMS>
    }
}

/// The mask of transposed scores.
type SeenBy<Mask> = Transposed<<Mask as MaskFn>::Keys>;

/// The modification of transposed scores.
type Turned<Mask> = <<Mask as MaskFn>::Scores as Scores>::Turned;

/// A block of keys, as the rows of transposed scores.
struct KeyTile<'p, Mask: MaskFn> {
    p: &'p BwdParams,
    variant: &'p Mask::Params,
    own: TileSequence,
    /// The first key, and the number of keys.
    keys: [u32; 2],
    /// Queries of a stage.
    tile_n: u32,
}

impl<Mask: MaskFn> KeyTile<'_, Mask> {
    /// Query head `head` of those that share the keys, counted over all heads of a batch.
    #[inline(always)]
    fn head(&self, head: u32) -> u32 {
        self.own.tile.head * self.p.heads_per_kv + head
    }

    /// The rows of the transposed scores.
    #[inline(always)]
    fn rows(&self, own: &TileSequence) -> Rows {
        let (lens, of) = ([own.queries.rows(), own.keys.rows()], [own.index, own.tile.head]);
        Rows::transposed(self.keys, lens, self.tile_n, own.window, of)
    }

    /// The sequence of a query head, as masks and scores see it.
    #[inline(always)]
    fn sequence(&self, own: &TileSequence, head: u32, by: &impl Capability) -> Sequence {
        let TileSequence { index, queries, keys, window, .. } = *own;
        let (first, of, [q_len, k_len]) = (0, [index, self.head(head)], [queries.rows(), keys.rows()]);
        Sequence::of(self.p, &Rows { first, tile: q_len, q_len, k_len, window, of }, 0, by)
    }

    /// The blocks of a head's queries that see the keys.
    #[inline(always)]
    fn range(&self, own: &TileSequence, head: u32, by: &impl Capability) -> (SeenBy<Mask>, BlockRange) {
        let of = self.sequence(own, head, by);
        let mask = Transposed::new(Mask::keys(self.variant, &of), &of);
        (mask, BlockRange::of(mask, &self.rows(own), self.tile_n))
    }
}

/// The copies of queries: head after head, and of each head the blocks that see the keys, the last one first.
struct Queries<'t, 'p, Mask: MaskFn, E, C: Kernel, const N: usize, const D: usize, const DV: usize> {
    of: &'t KeyTile<'p, Mask>,
    /// The head that begins next.
    head: u32,
    /// The block of -LSE and delta that belongs to the current head's first block, and its blocks that are
    /// left.
    start: u32,
    left: u32,
    q: Walk<E, N, D, Block<C>>,
    d_o: Walk<E, N, DV, Block<C>>,
}

impl<'t, 'p, Mask: MaskFn, E: Mma, C: Kernel, const N: usize, const D: usize, const DV: usize>
    Queries<'t, 'p, Mask, E, C, N, D, DV>
{
    #[inline(always)]
    fn new(of: &'t KeyTile<'p, Mask>, block: &Block<C>) -> Self {
        let (q, d_o) = Self::walks(of, &of.own, 0, 0, block);
        Queries { of, head: 0, start: 0, left: 0, q, d_o }
    }

    /// Walks through Q and dO of a query head, from tile `from` down.
    #[inline(always)]
    fn walks(
        of: &KeyTile<'p, Mask>,
        own: &TileSequence,
        head: u32,
        from: u32,
        block: &Block<C>,
    ) -> (Walk<E, N, D, Block<C>>, Walk<E, N, DV, Block<C>>) {
        let (q, d_o) = own.pair([&of.p.q, &of.p.d_o], of.head(head), own.queries);
        (Walk::down(q, from, block), Walk::down(d_o, from, block))
    }

    /// Starts the copies of the next block, if there is one. Only the first block of a head, which has its
    /// last queries, may be cut.
    #[inline(always)]
    fn next<const TEAMS: usize>(
        &mut self,
        slot: &QuerySlot<E, N, TEAMS, D, DV, ByBlock<C>>,
        block: &Block<C>,
    ) {
        let is_first = self.left == 0;
        while self.left == 0 {
            if self.head == self.of.p.heads_per_kv {
                return;
            }
            let own = self.of.own.again(self.of.p);
            let (_, range) = self.of.range(&own, self.head, block);
            self.start = own.values / self.of.tile_n + range.start;
            self.left = range.end.saturating_sub(range.start);
            (self.q, self.d_o) =
                Self::walks(self.of, &own, self.head, (range.end * TEAMS as u32).wrapping_sub(1), block);
            self.head += 1;
        }
        self.left -= 1;
        if is_first {
            slot.q.copy_edge(&mut self.q, block);
            slot.d_o.copy_edge(&mut self.d_o, block);
        } else {
            slot.q.copy_whole(&mut self.q, block);
            slot.d_o.copy_whole(&mut self.d_o, block);
        }
        let KeyTile { p, own, .. } = self.of;
        let head = own.tile.batch * p.order.heads.get() * p.heads_per_kv + self.of.head(self.head - 1);
        let beside = [&p.minus_lse, &p.delta].map(|values| HeadValues::new(values, head));
        slot.beside.copy(&beside, self.start + self.left, block);
    }
}

/// The shared memory for the keys.
type KeyPlace<C, E, const M: usize, const D: usize, const DV: usize> =
    Unfilled<Keys<E, M, D, DV>, ByBlock<C>>;

/// The stages of queries, and memory behind them.
type StagesAnd<
    X,
    C,
    E,
    const N: usize,
    const TEAMS: usize,
    const D: usize,
    const DV: usize,
    const STAGES: usize,
> = (Ring<QueryStage<E, N, TEAMS, D, DV>, STAGES, ByBlock<C>>, X);

impl<
    E: Mma,
    Mask: MaskFn,
    const M: usize,
    const W: usize,
    const N: usize,
    const TEAMS: usize,
    const D: usize,
    const SHARE: usize,
    const HELD: usize,
    const STAGES: usize,
    const DV: usize,
    const SHARE_V: usize,
> Portable for BwdDkDv<E, Mask, M, W, N, TEAMS, D, SHARE, HELD, STAGES, DV, SHARE_V>
{
    #[inline(always)]
    fn body<C: Kernel>(p: &BwdDkDvParams, variant: &Mask::Params, mut block: Block<C>, smem: Smem<C>) {
        const { assert!(!Mask::LISTED, "backward kernels take ranges of queries, no lists of key blocks") }
        let (BwdDkDvParams { problem: p, dk, dv }, block) = (p, &mut block);
        let (mut tile, [tile_m, tile_n]) =
            (p.order.tile(block.index()), [M, N * TEAMS].map(|n| n as u32 * 16));
        if !Mask::SEES_ALL {
            tile.m_block = p.order.m_blocks - 1 - tile.m_block; // the first keys have most queries
        }
        let Some(own) = TileSequence::find::<true>(p, tile, tile_m, block.warp()) else { return };
        let (tile, first) = (own.tile, own.tile.m_block * tile_m);
        let keys = KeyTile::<Mask> { p, variant, own, keys: [first, tile_m], tile_n };
        let unused = first.max(own.keys.rows())..(first + tile_m).min(own.all_keys.rows());
        if unused.start < unused.end {
            // No query sees these rows. Their gradients are 0.
            const { assert!(DV <= D, "the loop over dK's columns must reach all of dV's") }
            let rows = |t: &Tensor| own.rows::<E, D>(t, tile.head, own.all_keys);
            let rows = |t: &Tensor| rows(t).part(unused.start, unused.end - unused.start);
            [dk, dv].into_iter().for_each(|t| rows(t).clear::<_, M>(0, block));
            if unused.start == first {
                return;
            }
        }
        block.forget_thread();
        let (mine, team) = block.split_groups::<M, W, TEAMS>();
        let warp = mine.warp();

        // Prologue: keys and values, then the last queries of the first head.
        let (place, rest): (KeyPlace<C, E, M, D, DV>, _) = smem.split();
        let rest: StagesAnd<_, C, E, N, TEAMS, D, DV, STAGES> = rest;
        let (ring, mut operands): (_, Operands<2, M, W, N, TEAMS>) = rest;
        let (k, v) = own.pair([&p.k, &p.v], tile.kv_head, own.keys);
        let lead = place.fill(|slot| {
            slot.k.copy_edge(&mut Walk::down(k, tile.m_block, block), block);
            slot.v.copy_edge(&mut Walk::down(v, tile.m_block, block), block);
        });
        let mut queries = Queries::new(&keys, block);
        let (kv, mut stages) = ring.prologue(lead, |_, slot| queries.next(slot, block)).land(block);
        let k = Resident::<_, M, W, D, HELD>::load(&kv.k, mine);
        let v = Resident::<_, M, W, DV, HELD>::load(&kv.v, mine);

        // Mainloop.
        let (mut acc_dk, mut acc_dv) = (Acc::<W, SHARE>::zero(), Acc::<W, SHARE_V>::zero());
        for head in 0..p.heads_per_kv {
            let own = own.again(p);
            let ((mask, range), rows) = (keys.range(&own, head, &warp), keys.rows(&own));
            let of = keys.sequence(&own, head, &warp);
            let scores = Mask::scores(p, variant, &of).turned(&of);
            let row0 = first + mine.first();
            let seen = Seen::<_, W>::of(mask, At { rows: &rows, row0, key0: 0, warp });
            for n in (range.start..range.end).rev() {
                let (stage, exchange) =
                    stages.advance_to_exchange(&mut operands, block, |slot, block| queries.next(slot, block));
                let key0 = n * tile_n + team.index() * N as u32 * 16;
                let at = At { rows: &rows, row0, key0, warp };
                let (q, d_o) = (stage.q.tile(team), stage.d_o.tile(team));
                let (mut acc_s, mut acc_dp) = (Acc::<W, N>::zero(), Acc::<W, N>::zero());
                acc_s.mma_abt(&k, &q, warp, |_| {}); // S^T = K Q^T
                let factors = scores.differentiate(p, &mut acc_s, at);
                let is_interior = range.interior.0 <= n && n < range.interior.1;
                if !Mask::SEES_ALL && !is_interior {
                    seen.from(key0).mask(&mut acc_s, at);
                }
                let minus_lse = stage.beside.columns::<0>(team, warp);
                let probs = probabilities::<E, Turned<Mask>, W, N>(p, &mut acc_s, factors, &minus_lse);
                acc_dp.mma_abt(&v, &d_o, warp, |_| {}); // dP^T = V dO^T
                let ds = of_scores::<E, W, N>(&acc_dp, &acc_s, &stage.beside.columns::<1>(team, warp));
                let own = [probs, ds];
                acc_dv.mma_ab(&own[0], &d_o.columns(team), warp, |_| {}); // dV += P^T dO
                acc_dk.mma_ab(&own[1], &q.columns(team), warp, |_| {}); // dK += dS^T Q
                exchange.exchange(&own, block, |partner, [probs, ds]| {
                    acc_dv.mma_ab(probs, &stage.d_o.tile_of(partner).columns(team), warp, |_| {});
                    acc_dk.mma_ab(ds, &stage.q.tile_of(partner).columns(team), warp, |_| {});
                });
            }
        }

        // Epilogue.
        let own = own.again(p);
        acc_dk.map(|x| x * p.scale);
        // The groups' shares of a tensor's columns.
        let share = |t: &Tensor, tiles: u32| t.columns(team.index() * tiles * 2, tiles * 2);
        let [of_dk, of_dv] = [share(dk, SHARE as u32), share(dv, SHARE_V as u32)];
        let for_dk = kv.k.spent().columns::<_, SHARE, TEAMS>(team, block);
        for_dk.store_through(&acc_dk, &own.rows(&of_dk, own.tile.head, own.keys), first, mine);
        let for_dv = kv.v.spent().columns::<_, SHARE_V, TEAMS>(team, block);
        for_dv.store_through(&acc_dv, &own.rows(&of_dv, own.tile.head, own.keys), first, mine);
    }
}

impl<
    E: Mma,
    Mask: MaskFn<Params = ()>,
    const M: usize,
    const W: usize,
    const N: usize,
    const TEAMS: usize,
    const D: usize,
    const SHARE: usize,
    const HELD: usize,
    const STAGES: usize,
    const DV: usize,
    const SHARE_V: usize,
> Run for BwdDkDv<E, Mask, M, W, N, TEAMS, D, SHARE, HELD, STAGES, DV, SHARE_V>
{
    #[inline(always)]
    fn run(p: BwdDkDvParams, block: Block<Self>, smem: Smem<Self>) {
        Self::body(&p, &(), block, smem)
    }
}
