//! dK and dV of a block of keys, and dQ as sums in f32, in one pass over the scores (FlashAttention-3's
//! backward, Shah et al. 2024). Each step takes a tile of queries, with S^T = K Q^T and dP^T = V dO^T as in
//! the portable kernel ([`crate::backward`]):
//!
//! - dV += P^T dO and dK += dS^T Q, whose left operands are in registers;
//! - dQ += dS K, for which the warpgroups write dS to shared memory together. dQ and dK run one step later,
//!   before the next scores.
//!
//! dQ's sums lie in global memory. The blocks of keys add to them in turns, in the order of keys
//! ([`tile::turns`]), and the first block stores, so a repeated launch gives identical bits. A block waits
//! only for blocks of earlier keys of its head. These have lower tickets ([`tile::tickets`]), so no launch
//! waits forever.
use crate::backward::gradient::{of_rounded, of_scores, probabilities};
use crate::entries::Run;
use crate::rows::{Rows, Sequence};
use crate::variant::{MaskFn, Scores};
use key_block::{KeyBlock, Visit, Visits};
use spec::{BwdHopper, BwdHopperParams, MaskKind, WorkTile};
use tile::beside::HeadValues;
use tile::global::GlobalSums;
use tile::group::{Capability, Warpgroup};
use tile::mma::{AFrag, Acc, WarpgroupCore};
use tile::pipeline::Twins;
use tile::shared::SharedTiles;
use tile::tickets::Tickets;
use tile::tma::{Tma, TmaTensor, ValuedTile};
use tile::turns::Turns;
use tile::wgmma::{After, JointA, Late, Never, Step, StepOrder, ValuedStage};
use tile::{Block, Smem, Warp};

pub mod key_block;

/// A block's shared memory: keys and values; stages of queries and dO, with minus LSE and delta; dS; the
/// mbarriers of tickets and turns.
type Shared<
    E,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const SHARE: usize,
    const STAGES: usize,
> = (
    Twins<SharedTiles<E, 4, D, W>, 1, Tma>,
    (Twins<ValuedTile<E, N, D>, STAGES, Tma>, (JointA<E, N, M>, (Tickets<KEEPERS>, Turns<W, SHARE>))),
);
/// The number of keepers.
const KEEPERS: u32 = 2;

/// A work tile: a block of keys, with its head. It holds no reference to parameters: in an `Option` in the
/// loop over tickets, such a reference became an address of local memory.
struct View<Mask: MaskFn> {
    tile: WorkTile,
    block: KeyBlock<Mask::Keys>,
}

impl<Mask: MaskFn<Params = ()>> View<Mask> {
    /// The work tile of ticket `ticket`, if it exists. The first keys come first.
    #[inline(always)]
    fn of(p: &BwdHopperParams, [m, n]: [usize; 2], ticket: u32, by: &impl Capability) -> Option<Self> {
        if ticket >= p.order.tiles {
            return None;
        }
        let (tile_m, tile_n) = (m as u32 * 16, n as u32 * 16);
        let mut tile = p.order.tile(ticket);
        tile.m_block = p.order.m_blocks - 1 - tile.m_block;
        let rows = [tile.m_block * tile_m, tile_m];
        let rows = Rows::transposed(rows, [p.q_len, p.k_len], tile_n, p.window, [tile.batch, tile.head]);
        let of = sequence(p, &tile, tile.head * p.heads_per_kv, by);
        let mask = Mask::keys(&(), &of);
        Some(View { tile, block: KeyBlock::new([tile.m_block, p.order.m_blocks], rows, mask, &of, tile_n) })
    }

    /// The visits of the block, at the first visit.
    #[inline(always)]
    fn visits(&self, p: &BwdHopperParams) -> Visits {
        let first = self.tile.head * p.heads_per_kv;
        self.block.visits(first..first + p.heads_per_kv)
    }

    /// The coordinates of a visit's queries: row, head, batch.
    #[inline(always)]
    fn queries(&self, visit: Visit) -> [u32; 3] {
        [self.block.first_query(visit), visit.head, self.tile.batch]
    }

    /// The coordinates of the block's keys in head `head`.
    #[inline(always)]
    fn keys(&self, head: u32) -> [u32; 3] {
        [self.block.rows.first, head, self.tile.batch]
    }

    /// The query head of a visit, counted over all batches.
    #[inline(always)]
    fn head_of_all(&self, p: &BwdHopperParams, visit: Visit) -> u32 {
        self.tile.batch * p.order.heads.get() * p.heads_per_kv + visit.head
    }

    /// P^T of a visit's products, as an operand. The products become what [`of_scores`] takes.
    #[inline(always)]
    fn probabilities<E: WarpgroupCore, const N: usize, const D: usize>(
        &self,
        p: &BwdHopperParams,
        products: &mut Acc<1, N>,
        visit: Visit,
        queries: &ValuedStage<'_, E, N, D>,
        (first_row, warp): (u32, Warp),
    ) -> AFrag<E, 1, N> {
        let scores = Mask::scores(p, &(), &sequence(p, &self.tile, visit.head, &warp));
        scores.change(p, products, self.block.at(visit.n, first_row, warp));
        self.block.mask(products, visit.n, (first_row, warp));
        probabilities::<E, Mask::Scores, 1, N>(p, products, None, &queries.columns(warp))
    }
}

/// A query head of a work tile, as masks and scores see it.
#[inline(always)]
fn sequence(p: &BwdHopperParams, tile: &WorkTile, head: u32, by: &impl Capability) -> Sequence {
    let (of, q_len, k_len) = ([tile.batch, head], p.q_len, p.k_len);
    Sequence::of(p, &Rows { first: 0, tile: q_len, q_len, k_len, window: p.window, of }, 0, by)
}

impl<
    E: WarpgroupCore,
    Mask: MaskFn<Params = ()>,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const SHARE: usize,
    const STAGES: usize,
> Run for BwdHopper<E, Mask, M, W, N, D, SHARE, STAGES>
{
    #[inline(always)]
    fn run(p: BwdHopperParams, block: Block<Self>, smem: Smem<Self>) {
        const {
            let has_no_gap = matches!(Mask::KIND, MaskKind::Full | MaskKind::Causal | MaskKind::Local);
            assert!(has_no_gap && !Mask::LISTED, "the keys of consecutive queries must leave no gap");
            assert!(
                !Mask::Scores::CHANGES_EACH,
                "Hopper's backward kernels take no `ScoreMod`: use `BwdDkDv` and `BwdDq`"
            );
            assert!(N == 4 || Mask::Scores::IS_NONE, "wide stages have no registers for modified scores");
        }
        let p = &p;
        let [q_rows, d_o_rows]: [TmaTensor<_, N, D>; 2] = [block.tensor(|p| &p.q), block.tensor(|p| &p.d_o)];
        let [k_rows, v_rows] = [block.tensor(|p| &p.k), block.tensor(|p| &p.v)];
        let [dk, dv]: [TmaTensor<_, 4, D>; 2] = [block.tensor(|p| &p.dk), block.tensor(|p| &p.dv)];
        let sums = GlobalSums::<W, SHARE>::new(&p.sums);
        let shared: Shared<E, M, W, N, D, SHARE, STAGES> = smem.split();

        block.specialize(
            shared,
            |(mut keys, (mut queries, ((), (mut tickets, ()))))| {
                while let Some(view) = View::<Mask>::of(p, [M, N], tickets.take(&p.sums), &tickets) {
                    let mut load = |visit: Visit| {
                        let [minus_lse, delta] = [&p.minus_lse, &p.delta]
                            .map(|values| HeadValues::new(values, view.head_of_all(p, visit)));
                        let stage = [q_rows.beside(&minus_lse, visit.n), d_o_rows.beside(&delta, visit.n)];
                        queries.load(stage.each_ref(), view.queries(visit));
                    };
                    let mut visits = view.visits(p);
                    keys.load([&v_rows, &k_rows], view.keys(view.tile.kv_head));
                    loop {
                        load(visits.visit);
                        if !visits.advance() {
                            break;
                        }
                    }
                }
            },
            |((), ((), ((), (mut tickets, mut keeper))))| {
                while let Some(view) = View::<Mask>::of(p, [M, N], tickets.receive(), &tickets) {
                    let mut visits = view.visits(p);
                    loop {
                        let visit = visits.visit;
                        let tile = sums.tile(view.head_of_all(p, visit), visit.n);
                        keeper.keep(tile, view.block.turn(visit.n));
                        if !visits.advance() {
                            break;
                        }
                    }
                }
            },
            |mut group, (mut keys, (mut queries, (mut joint, (mut tickets, mut turns))))| {
                let order = match N {
                    4 if Mask::Scores::IS_NONE => StepOrder::Together,
                    4 => StepOrder::Apart,
                    _ => StepOrder::Wide,
                };
                while let Some(view) = View::<Mask>::of(p, [M, N], tickets.receive_with(&mut group), &tickets)
                {
                    // Numbers that depend on the thread take no register from work tile to work tile.
                    if Mask::Scores::IS_NONE {
                        group.forget_thread();
                    }
                    let at = (group.first_row(), group.warp());
                    let never = match D {
                        8 => Never::of_lane(p.order.heads, group.warp()),
                        _ => Never::of_grid(),
                    };
                    let rows = view.block.existing();
                    let [v, k] = keys.take();
                    let (mut acc_dk, mut acc_dv) = (Acc::cleared(), Acc::cleared());
                    let mut add =
                        |acc_dq: &mut Acc<1, SHARE>, group: &mut Warpgroup<W>| turns.add(acc_dq, group);
                    let ds_of =
                        |s: &Acc<1, N>, dp: &Acc<1, N>, p: &AFrag<E, 1, N>, d_o: &ValuedStage<_, N, D>| {
                            let delta = d_o.columns(at.1);
                            if N == 4 { of_scores(dp, s, &delta) } else { of_rounded(dp, p, &delta) }
                        };

                    let mut visits = view.visits(p);
                    let visit = visits.visit;
                    let [mut q_last, d_o] = queries.take();
                    let mut ds = group.five_products(
                        After::Nothing(joint),
                        |_: &mut Acc<1, SHARE>, _| (),
                        Step { k: &k, v: &v, q: &q_last, d_o: &d_o, dv: &mut acc_dv, rows, order, never },
                        |s| view.probabilities(p, s, visit, &q_last, at),
                        |s, dp, p| ds_of(s, dp, p, &d_o),
                    );
                    drop(d_o);
                    while visits.advance() {
                        let visit = visits.visit;
                        let [q_now, d_o] = queries.take();
                        ds = group.five_products(
                            After::Step(Late { dk: &mut acc_dk, ds, q: q_last }),
                            &mut add,
                            Step { k: &k, v: &v, q: &q_now, d_o: &d_o, dv: &mut acc_dv, rows, order, never },
                            |s| view.probabilities(p, s, visit, &q_now, at),
                            |s, dp, p| ds_of(s, dp, p, &d_o),
                        );
                        q_last = q_now;
                    }
                    joint =
                        group.two_products(Late { dk: &mut acc_dk, ds, q: q_last }, &k, &mut add, |group| {
                            v.store_through(&acc_dv, &dv, view.keys(view.tile.head), group)
                        });
                    acc_dk.map(|x| x * p.scale);
                    k.store_through(&acc_dk, &dk, view.keys(view.tile.head), &mut group);
                }
            },
        );
    }
}
