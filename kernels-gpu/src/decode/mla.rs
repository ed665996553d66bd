//! One work item on a latent cache (MLA, DeepSeek-V2). The values are the first columns of the keys, so one
//! copy serves both. [`super::latents`] has the keys of a work item: of its sequence, or of its query's
//! list.
//!
//! The warps of a block share each stage of keys. For S^T = K Q^T, each warp takes 16 of the stage's keys and
//! some of the queries. The warps exchange P. For O^T = V^T P^T, each warp takes a share of V's columns, for
//! all keys.
use super::batch::Batch;
use super::key_stages::KeyStages;
use super::latents::Latents;
use super::merge::{finish, store_empty};
use super::schedule::{Item, first_lengths, in_window, items};
use super::softmax::Softmax;
use crate::capped::times;
use crate::entries::Run;
use crate::partial::Partial;
use crate::variant::MaskFn;
use attention_tile::{head_of, load_per_head};
use core::ops::ControlFlow;
use spec::{DType, DecodeParams, Element, Kernel, Mla, MlaDequant, Sparse, SparseParams};
use tile::copy::CpAsync;
use tile::exchange::JointB;
use tile::mma::{ColAcc, ColFrag, ColVec, PlacePartB, Stored, TensorCore};
use tile::pipeline::{ConvertedRing, Ring};
use tile::shared::{ConvertRows, SharedTile};
use tile::{Block, Smem, Steps};

/// The tiles of keys.
type Tile<E, const KEYS: usize, const D: usize> = SharedTile<E, KEYS, D>;
/// The stages of keys as they are.
type Stages<K, E, const KEYS: usize, const D: usize, const STAGES: usize> =
    Ring<Tile<E, KEYS, D>, STAGES, CpAsync<Block<K>>>;
/// Two stages of keys as they are stored, and one converted.
type Converted<K, E, S, const KEYS: usize, const D: usize, const DS: usize> =
    ConvertedRing<Tile<S, KEYS, DS>, Tile<E, KEYS, D>, 2, CpAsync<Block<K>>>;

/// Makes a kernel of a configuration with these parameters, whose stages are of a type, and whose stored rows
/// have type `S` and `DS` base tiles.
macro_rules! run {
    (
        $config:ty, $params:ty, $stages:ty, $s:ident, $ds:ident
        [$($type:ident: $bound:path),*] [$($size:ident),*]
    ) => {
        impl<
            E: TensorCore + Stored<As = E>,
            $($type: $bound,)*
            Mask: MaskFn,
            const G: usize,
            const OWN: usize,
            const KEYS: usize,
            const D: usize,
            const DV: usize,
            const SHARE: usize,
            const WARPS: usize,
            $(const $size: usize,)*
            const HELD: bool,
        > Run for $config
        {
            /// Processes a block's work items, whose indices differ by the grid size.
            #[inline(always)]
            fn run(p: $params, mut block: Block<Self>, smem: Smem<Self>) {
                let items = items(&block);
                let few = first_lengths(&p, block.warp());
                smem.rounds(&mut block, items, &p, few, |p, few, index, block, mut smem| {
                    block.forget_thread();
                    let Some(item) = Item::of::<Mask, _>(p, few, index, block, &mut smem) else {
                        return ControlFlow::Break(());
                    };
                    if item.counts {
                        attend::<Self, E, $s, $stages, Mask, G, OWN, KEYS, D, $ds, DV, SHARE, WARPS, HELD>(
                            p, &item, block, smem,
                        );
                    }
                    item.next(index, block)
                });
                store_empty::<E, _, DV>(&p, &block);
            }
        }
    };
}
macro_rules! as_they_are {
    ($config:ty, $params:ty) => {
        run!($config, $params, Stages<Self, E, KEYS, D, STAGES>, E, D [] [STAGES]);
    };
}
as_they_are!(Mla<E, Mask, G, OWN, KEYS, D, DV, SHARE, WARPS, STAGES, HELD>, DecodeParams);
as_they_are!(Sparse<Mla<E, Mask, G, OWN, KEYS, D, DV, SHARE, WARPS, STAGES, HELD>>, SparseParams);
macro_rules! converted {
    ($config:ty, $params:ty) => {
        run!($config, $params, Converted<Self, E, S, KEYS, D, DS>, S, DS [S: ConvertRows<E>] [DS]);
    };
}
converted!(MlaDequant<E, S, Mask, G, OWN, KEYS, D, DS, DV, SHARE, WARPS, HELD>, DecodeParams);
converted!(Sparse<MlaDequant<E, S, Mask, G, OWN, KEYS, D, DS, DV, SHARE, WARPS, HELD>>, SparseParams);

/// Processes one work item.
#[inline(always)]
fn attend<
    C: Kernel<Params: Latents>,
    E: TensorCore + Stored<As = E>,
    S: Element,
    Keys: KeyStages<C, Tile<E, KEYS, D>, Stored = Tile<S, KEYS, DS>>,
    Mask: MaskFn,
    const G: usize,
    const OWN: usize,
    const KEYS: usize,
    const D: usize,
    const DS: usize,
    const DV: usize,
    const SHARE: usize,
    const WARPS: usize,
    const HELD: bool,
>(
    latents: &C::Params,
    item: &Item,
    block: &mut Block<C>,
    smem: Smem<C>,
) {
    let p = latents.decode();
    let (warp, (_, share)) = (block.warp(), block.split_groups::<1, 1, WARPS>());
    let stage_keys = KEYS as u32 * 16;
    let queries = item.rows_of(p, &p.q);
    // This warp's tile of a stage's keys, and the first of the warp's groups of rows.
    let [tile, group] = JointB::<E, KEYS, G>::part::<OWN>(warp);
    let mine = queries.part(group * 8, OWN as u32 * 8);
    // Plain numbers of eight bits have one scale for each latent head, a factor of scores and of O.
    let is_scaled = S::DTYPE == DType::E4m3;
    let scale = |which: usize, block: &Block<C>| {
        Keys::FACTOR * load_per_head(&p.scales[which], head_of(item.sequence, item.kv_head, block))
    };
    let scale_log2 = if is_scaled { times(p.scale_log2, scale(0, block)) } else { p.scale_log2 };
    let (mut acc_o, mut softmax) = (ColAcc::<SHARE, G>::zero(), Softmax::<OWN>::new(scale_log2));

    type Rest<E, const KEYS: usize, const G: usize, const D: usize, const HELD: bool> =
        (PlacePartB<E, D, G, HELD>, JointB<E, KEYS, G>);
    let (ring, (place, mut joint)): (Keys, Rest<E, KEYS, G, D, HELD>) = smem.split();
    let mut walk = latents.walk::<S, KEYS, DS, _>(item, block);
    // The block loads Q before it starts the copies of keys. Q has few bytes, which would otherwise wait
    // behind the keys.
    let one = |group: u32| ColFrag::load::<E, E>(&queries.part(group * 8, 8), warp).0;
    let q = place.keep(group, || ColFrag::<E, D, OWN>::load::<E, E>(&mine, warp).0, one, block);
    let stages = item.keys.div_ceil(stage_keys);
    let mut kv = ring.start(|i, slot| {
        if item.split + i * item.splits < stages {
            slot.copy_edge(&mut walk, block)
        }
    });
    let all_see = latents.all_see::<Mask>(item, queries.unpack(0)[0]);
    for n in (Steps { at: item.split, step: item.splits, end: stages }) {
        let slots = latents.load_slots::<KEYS>(item, [n, tile], warp);
        let stage = Keys::next(&mut kv, block, |slot, block| {
            if n + Keys::AHEAD * item.splits < stages {
                slot.copy_edge(&mut walk, block)
            }
        });
        let mut s = ColAcc::<1, OWN>::product_of(&stage, tile, &q, warp); // S^T = K Q^T
        if ((n + 1) * stage_keys) as i32 > all_see {
            let end = |row| in_window::<Mask>(p, mine.unpack(row)[0], item.keys).end;
            s.keep_before(&ColVec::<i32, OWN>::from_fn(warp, end), n * stage_keys + tile * 16, warp);
        }
        latents.hide(item, &mut s, slots);
        // P = exp2(S - max), with the current maximum. If the scores of at least one warp grew too much, all
        // warps update their maxima and compute P again.
        let mut probs = softmax.probabilities::<E, 1>(&s, warp);
        if joint.write(&probs, softmax.grew(&s), block) {
            joint.write_values(softmax.maxima(&s, warp), block);
            let least = |maxima: [[f32; 2]; KEYS]| maxima.iter().fold(f32::MAX, |least, x| least.min(x[0]));
            let rescale = |maxima: [[f32; 2]; KEYS]| Softmax::<OWN>::rescale([least(maxima), maxima[0][1]]);
            acc_o.scale_columns(&joint.values(0, warp, rescale));
            softmax.settle(joint.values(group, warp, least));
            probs = softmax.probabilities::<E, 1>(&s, warp);
            joint.write(&probs, false, block);
        }
        softmax.count(&probs, warp);
        let values = stage.first_columns::<DV>();
        let values = values.columns::<SHARE, WARPS>(share);
        for k in 0..KEYS {
            acc_o.add_transposed_of(&values, k, &joint.k_step(k, warp), warp); // O^T += V^T P^T
        }
    }

    if is_scaled {
        let scale = scale(1, block);
        acc_o.map(|x| x * scale);
    }

    // The warps exchange their shares through shared memory, so that each warp gets whole rows. Splits merge
    // through global memory.
    let state = (&acc_o, softmax.state());
    let left = Keys::reclaim(kv, block).exchange_shares::<E, _, SHARE, DV, G, OWN, KEYS, WARPS>(
        state,
        queries.count(),
        share,
        block,
    );
    let all = |row, quad| {
        let (o, states) = left.quad(row, quad);
        Partial { max: states[0][0], sum: states.iter().fold(0.0, |sum, x| sum + x[1]), o }
    };
    finish::<E, _, DV>(p, &item.forget(), all, block)
}
