//! dK and dV of a block of keys, and dQ as sums in f32, in one pass over the scores (FlashAttention-3's
//! backward, Shah et al. 2024). Each step takes a tile of queries, with S^T = K Q^T and dP^T = V dO^T as in
//! the portable kernel ([`crate::backward`]):
//!
//! - dV += P^T dO and dK += dS^T Q, whose left operands are in registers;
//! - dQ += dS K, for which the warpgroups write dS to shared memory together.
//!
//! dQ's sums lie in global memory. The blocks of keys add to them in turns, in the order of keys
//! ([`tile::turns`]), and the first block stores, so a repeated launch gives identical bits. A block waits
//! only for blocks of earlier keys of its head, in varlen tensors of its sequence. These have lower tickets
//! ([`tile::tickets`]), so no launch waits forever. If offsets of sequences descend, such a block might not
//! exist, so [`crate::backward::delta`] then leaves no tickets.
use crate::backward::gradient::{of_rounded, of_scores, probabilities};
use crate::entries::Run;
use crate::rows::{Rows, Sequence};
use crate::variant::{MaskFn, Scores};
use key_block::{KeyBlock, Visit, Visits};
use spec::{BwdHopper, BwdHopperParams, MaskKind, NoteWords, PaddedVector};
use tile::beside::HeadValues;
use tile::global::GlobalSums;
use tile::group::Capability;
use tile::mma::{AFrag, Acc, WarpgroupCore};
use tile::pipeline::Twins;
use tile::shared::SharedTiles;
use tile::tickets::{TicketConsumer, Tickets};
use tile::tma::{Tma, TmaTensor, ValuedTile};
use tile::turns::Turns;
use tile::wgmma::{JointA, Never, Step, StepOrder, ValuedStage};
use tile::{Block, Smem, Warp};
use tiles::{KeyMap, KeyTile};

pub mod key_block;
pub mod tiles;

/// A block's shared memory: keys and values; stages of queries and dO, with minus LSE and delta; dS; the
/// mbarriers of tickets and turns.
type Shared<
    E,
    Map,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const SHARE: usize,
    const STAGES: usize,
    const T: usize,
> = (
    Twins<SharedTiles<E, 4, D, T>, 1, Tma<Map>>,
    (
        Twins<ValuedTile<E, N, D>, STAGES, Tma<Map>>,
        (JointA<E, N, M>, (Tickets<NoteOf<Map>, KEEPERS, W>, Turns<W, SHARE>)),
    ),
);
/// The note that the producer passes to the other warps.
type NoteOf<Map> = <<Map as KeyMap>::Tile as KeyTile>::Note;
/// The number of keepers.
const KEEPERS: u32 = 2;

/// A work tile with its mask. It holds no reference to parameters: in an `Option` in the loop over tickets,
/// such a reference became an address of local memory.
struct View<Mask: MaskFn, T> {
    tile: T,
    block: KeyBlock<Mask::Keys>,
}

impl<Mask: MaskFn<Params = ()>, T: KeyTile> View<Mask, T> {
    /// The work tile of a note, if there is one.
    #[inline(always)]
    fn of(
        p: &BwdHopperParams<T::Map>,
        sizes: [usize; 2],
        note: T::Note,
        by: &impl Capability,
    ) -> Option<Self> {
        if !T::is_some(p, note) {
            return None;
        }
        let tile = T::of(p, note);
        Some(View { tile, block: Self::block(p, sizes, &tile, by) })
    }

    /// The keys of a work tile of `m` and `n` base tiles of keys and queries.
    #[inline(always)]
    fn block(
        p: &BwdHopperParams<T::Map>,
        [m, n]: [usize; 2],
        tile: &T,
        by: &impl Capability,
    ) -> KeyBlock<Mask::Keys> {
        let (m, n) = (m as u32 * 16, n as u32 * 16);
        let ([number, blocks], (lens, window)) = (tile.number(p, m), tile.lens(p));
        let rows = Rows::transposed([number * m, m], lens, n, window, tile.of_head());
        let of = sequence(p, tile, tile.of_head()[1] * p.heads_per_kv, by);
        KeyBlock::new([number, blocks], rows, Mask::keys(&(), &of), &of, n, T::HAS_UNUSED)
    }

    /// The visits of the block, at the first visit.
    #[inline(always)]
    fn visits(&self, p: &BwdHopperParams<T::Map>) -> Visits {
        let first = self.tile.of_head()[1] * p.heads_per_kv;
        self.block.visits(first..first + p.heads_per_kv)
    }

    /// P^T of a visit's products, as an operand. The products become what [`of_scores`] takes.
    #[inline(always)]
    fn probabilities<E: WarpgroupCore, const M: usize, const N: usize, const D: usize>(
        &self,
        (p, tickets): (&BwdHopperParams<T::Map>, &TicketConsumer<T::Note>),
        products: &mut Acc<1, N>,
        visit: Visit,
        queries: &ValuedStage<'_, E, N, D>,
        (first_row, warp): (u32, Warp),
    ) -> AFrag<E, 1, N> {
        let scores = Mask::scores(p, &(), &sequence(p, &self.tile, visit.head, &warp));
        scores.change(p, products, self.block.at(visit.n, first_row, warp));
        if !Mask::SEES_ALL && !self.block.is_interior(visit.n) {
            let block = match T::Note::IS_KEPT {
                true => Self::block(p, [M, N], &self.tile.kept(p, tickets, warp), &warp),
                false => self.block,
            };
            block.mask(products, visit.n, (first_row, warp));
        }
        probabilities::<E, Mask::Scores, 1, N>(p, products, None, &queries.columns(warp))
    }
}

/// Sets the gradients of keys to 0 that their sequence does not use.
#[inline(always)]
fn clear_unused<Map: KeyMap, const C: usize>(
    gradients: &mut Acc<1, C>,
    rows: u32,
    (first_row, warp): (u32, Warp),
) {
    if Map::Tile::HAS_UNUSED {
        gradients.keep_rows_before(rows as i32 - first_row as i32, warp);
    }
}

/// A query head of a work tile, as masks and scores see it.
#[inline(always)]
fn sequence<T: KeyTile>(p: &BwdHopperParams<T::Map>, tile: &T, head: u32, by: &impl Capability) -> Sequence {
    let ([q_len, k_len], window) = tile.lens(p);
    let of = [tile.of_head()[0], head];
    Sequence::of(p, &Rows { first: 0, tile: q_len, q_len, k_len, window, of }, 0, by)
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
    Map: KeyMap,
    const T: usize,
    const C: usize,
    const V: usize,
    const DEPTH: usize,
    const DEPTH_V: usize,
> Run for BwdHopper<E, Mask, M, W, N, D, SHARE, STAGES, Map, T, C, V, DEPTH, DEPTH_V>
{
    #[inline(always)]
    fn run(p: BwdHopperParams<Map>, block: Block<Self>, smem: Smem<Self>) {
        const {
            let has_no_gap = matches!(Mask::KIND, MaskKind::Full | MaskKind::Causal | MaskKind::Local);
            assert!(has_no_gap && !Mask::LISTED, "the keys of consecutive queries must leave no gap");
            assert!(
                !Mask::Scores::CHANGES_EACH,
                "Hopper's backward kernels take no `ScoreMod`: use `BwdDkDv` and `BwdDq`"
            );
            assert!(
                !Map::Tile::HAS_UNUSED || PaddedVector::ROWS.is_multiple_of(N as u32 * 16),
                "the rows of sequences in -LSE and delta must be whole stages"
            );
            assert!(
                N == 4 && M * D <= 32 || Mask::Scores::IS_NONE,
                "wide stages and large blocks have no registers for modified scores: use `Windowed`"
            );
        }
        let p = &p;
        let [q_rows, d_o_rows]: [TmaTensor<_, N, D, Map>; 2] =
            [block.tensor(|p| &p.q), block.tensor(|p| &p.d_o)];
        let [k_rows, v_rows] = [block.tensor(|p| &p.k), block.tensor(|p| &p.v)];
        let [dk, dv]: [TmaTensor<_, 4, D, Map>; 2] = [block.tensor(|p| &p.dk), block.tensor(|p| &p.dv)];
        let sums = GlobalSums::<W, SHARE>::new(&p.sums);
        let shared: Shared<E, Map, M, W, N, D, SHARE, STAGES, T> = smem.split();

        block.specialize(
            shared,
            |(mut keys, (mut queries, ((), (mut tickets, ()))))| {
                while let Some(view) =
                    View::<Mask, Map::Tile>::of(p, [M, N], Map::Tile::take(p, &mut tickets, [M, N]), &tickets)
                {
                    let mut load = |visit: Visit| {
                        let tile = view.tile.again(p, &tickets);
                        let [minus_lse, delta] = [&p.minus_lse, &p.delta]
                            .map(|values| HeadValues::new(values, tile.head_of_all(p, visit.head)));
                        let n = tile.values(p, visit.n, N as u32 * 16);
                        let stage = [q_rows.beside(&minus_lse, n), d_o_rows.beside(&delta, n)];
                        let at = tile.query(view.block.first_query(visit), visit.head);
                        queries.load(stage.each_ref(), at);
                    };
                    let mut visits = view.visits(p);
                    keys.load([&v_rows, &k_rows], view.tile.key(view.block.rows.first));
                    loop {
                        load(visits.visit);
                        if !visits.advance() {
                            break;
                        }
                    }
                }
            },
            |((), ((), ((), (mut tickets, mut keeper))))| {
                while let Some(view) = View::<Mask, Map::Tile>::of(p, [M, N], tickets.receive(), &tickets) {
                    let mut visits = view.visits(p);
                    loop {
                        let visit = visits.visit;
                        let tile = sums.tile(view.tile.head_of_all(p, visit.head), view.tile.sums(visit.n));
                        keeper.keep(tile, view.block.turn(visit.n));
                        if !visits.advance() {
                            break;
                        }
                    }
                }
            },
            |mut group, (mut keys, (mut queries, (mut joint, (mut tickets, mut turns))))| {
                let order = match N {
                    8 => StepOrder::Wide,
                    _ if T == 1 => StepOrder::Columns,
                    _ if Mask::Scores::IS_NONE => StepOrder::Together,
                    _ => StepOrder::Apart,
                };
                while let Some(view) =
                    View::<Mask, Map::Tile>::of(p, [M, N], tickets.receive_with(&mut group), &tickets)
                {
                    // Numbers that depend on the thread take no register from work tile to work tile.
                    if Mask::Scores::IS_NONE {
                        group.forget_thread();
                    }
                    let first_row = if T == 1 { group.first_row() % 64 } else { group.first_row() };
                    let at = (first_row, group.warp());
                    let never = match D {
                        8 => Never::of_lane(p.order.heads, group.warp()),
                        _ => Never::of_grid(),
                    };
                    let rows = view.tile.existing(&view.block.rows);
                    let [v, k] = keys.take();
                    let (mut acc_dk, mut acc_dv) = (Acc::<1, C>::cleared(), Acc::<1, V>::cleared());
                    let ds_of =
                        |s: &Acc<1, N>, dp: &Acc<1, N>, p: &AFrag<E, 1, N>, d_o: &ValuedStage<_, N, D>| {
                            let delta = d_o.columns(at.1);
                            if N == 4 { of_scores(dp, s, &delta) } else { of_rounded(dp, p, &delta) }
                        };

                    let mut visits = view.visits(p);
                    loop {
                        let visit = visits.visit;
                        let [q, d_o] = queries.take();
                        let (dk, dv) = (&mut acc_dk, &mut acc_dv);
                        group.five_products(
                            &mut joint,
                            Step {
                                k: &k,
                                v: &v,
                                q: &q,
                                d_o: &d_o,
                                dk,
                                dv,
                                depths: [DEPTH, DEPTH_V],
                                rows,
                                order,
                                never,
                            },
                            |s| view.probabilities::<_, M, N, D>((p, &tickets), s, visit, &q, at),
                            |s, dp, p| ds_of(s, dp, p, &d_o),
                            |dq: &mut Acc<1, SHARE>, group| turns.add(dq, group),
                        );
                        if !visits.advance() {
                            break;
                        }
                    }
                    group.wait_for_all();
                    let first_row = || view.tile.kept(p, &tickets, at.1).gradient(view.block.rows.first);
                    clear_unused::<Map, V>(&mut acc_dv, rows, at);
                    v.store_part_through(&acc_dv, &dv, first_row(), &mut group);
                    acc_dk.map(|x| x * p.scale);
                    clear_unused::<Map, C>(&mut acc_dk, rows, at);
                    k.store_part_through(&acc_dk, &dk, first_row(), &mut group);
                }
            },
        );
    }
}
