//! Merges attention states that have the same rows and different keys.
use crate::entries::Run;
use crate::partial::Partial;
use attention_tile::{head_of, load_per_head};
use core::f32::consts::LOG2_E;
use spec::{Merge, MergeParams, MergeState};
use tile::global::{LoadEight, OwnPart, StoreEight, load_value};
use tile::{Block, Smem, Steps};

/// Number of states, without the first, whose loads are in flight at the same time. With 4 instead of 2, an
/// SM holds 3 blocks instead of 5, and two states of 32768 x 32 rows take 313 us instead of 272 us (H200).
const AT_ONCE: usize = 2;

/// The partial result over no keys.
const EMPTY: Partial<8> = Partial { max: f32::NEG_INFINITY, sum: 1.0, o: [0.0; 8] };

/// This thread's part of a state, as it is in memory, and the state's LSE.
type Loaded<E> = (f32, <E as LoadEight>::Bits);

/// Loads this thread's part of a state.
#[inline(always)]
fn load<E: LoadEight>(state: &MergeState, own: &OwnPart, row: [u32; 3]) -> Loaded<E> {
    (load_value(&state.lse, row, own), own.load::<E>(&state.o, row))
}

/// A loaded part as a partial result. A state that has seen no key has the LSE -inf (+inf from
/// FlashAttention-2) and any O.
#[inline(always)]
fn partial<E: LoadEight>((lse, bits): Loaded<E>, to_two: f32) -> Partial<8> {
    let lse = lse * to_two;
    if lse.is_infinite() { EMPTY } else { Partial::normal(E::widen(bits), lse) }
}

/// The batch, row and head of this thread's part.
#[inline(always)]
fn row(p: &MergeParams, own: &OwnPart) -> [u32; 3] {
    let (row, head) = p.heads.div_rem(own.row());
    let (batch, row) = p.rows.div_rem(row);
    [batch, row, head]
}

impl<E: LoadEight, O: StoreEight> Run for Merge<E, O> {
    #[inline(always)]
    fn run(p: MergeParams, mut block: Block<Self>, _: Smem<Self>) {
        let make = |own: &OwnPart| {
            let row = row(&p, own);
            let first = load::<E>(&p.first, own, row);
            let sink = load_per_head(&p.sinks, head_of(row[0], row[2], own));
            let none = (f32::NEG_INFINITY, Default::default());
            let others = |from: u32| {
                core::array::from_fn::<Loaded<E>, AT_ONCE, _>(|i| {
                    let i = from + i as u32;
                    if i < p.others.count { load::<E>(&p.others.state(i), own, row) } else { none }
                })
            };
            // The loads of the first states are all in flight before the merge waits for one of them.
            let mut next = others(0);
            let first = partial::<E>(first, p.to_two);
            let mut all = Partial::NONE.merge([first, Partial::sink(sink * LOG2_E)]);
            all = all.merge(next.map(|x| partial::<E>(x, p.to_two)));
            for from in (Steps { at: AT_ONCE as u32, step: AT_ONCE as u32, end: p.others.count }) {
                next = others(from);
                all = all.merge(next.map(|x| partial::<E>(x, p.to_two)));
            }
            all.normalised()
        };
        OwnPart::in_place(&p.parts, &mut block, make, |own, (o, lse)| {
            let row = row(&p, own);
            own.store::<O>(&p.result.o, row, o);
            own.store_value(&p.result.lse, row, lse * p.from_two);
        })
    }
}
