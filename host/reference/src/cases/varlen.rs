//! The test problems of varlen kernels.
use super::{columns, masked, of, of_a_card, takes_slopes, tensors};
use crate::case::{Case, Pages};
use crate::device_lengths;
use crate::masks::{at_edges, several};
use crate::place::Layout;
use ferroflash::kernels::{AttnInfo, MaskKind};
use ferroflash::request::{Alignment, Mask};
use ferroflash::spec::Class;

/// A sequence, `[tiles, queries, blocks, keys, unused]`. The sequence has `tiles` whole tiles and `queries`
/// further queries, `blocks` whole key blocks and `keys` further keys, and `unused` rows of K and V behind
/// its keys.
type Lengths = [i32; 5];

/// Sequences of more than a tile, sequences without queries or keys, sequences with unused keys, sequences of
/// exact tiles, and empty sequences.
const RAGGED: &[Lengths] =
    &[[1, 1, 2, 1, 0], [0, 0, 1, 0, 0], [0, 3, 0, 0, 0], [0, 5, 1, -1, 2], [1, 0, 3, 0, 0], [0, 0, 0, 0, 0]];
/// Sequences with few queries, and with fewer keys than queries.
const SHORT: &[Lengths] = &[[0, 1, 0, 1, 0], [0, 2, 1, 1, 0], [0, 7, 0, 3, 9], [0, 1, 2, 0, 0]];
/// Sequences of equal lengths, except one.
const EVEN: &[Lengths] = &[[1, 0, 1, 3, 0], [1, 0, 1, 3, 0], [0, 9, 1, 3, 0]];
/// One long sequence among many short ones: more sequences than a warp searches at once.
const MANY: &[Lengths] = &{
    let mut all = [[0, 2, 0, 3, 0]; 41];
    all[29] = [1, 3, 2, 5, 0];
    all[7] = [0, 0, 0, 4, 0];
    all[33] = [0, 1, 0, 0, 0];
    all
};
/// Sequences of equal lengths of two tiles.
const EQUAL: &[Lengths] = &[[1, 3, 1, 1, 0]; 3];
/// Sequences of several tiles and several key blocks, for a GPU.
const LONG: &[Lengths] = &[
    [4, 77, 16, 5, 0],
    [0, 1, 30, 1, 0],
    [2, 0, 3, 11, 50],
    [0, 0, 2, 0, 0],
    [9, 3, 18, 6, 0],
    [0, 30, 0, 0, 0],
    [1, -1, 9, -1, 0],
    [3, 40, 1, 0, 0],
];

/// Returns a case of `lengths`.
fn case(entry: &AttnInfo, lengths: &[Lengths], columns: [usize; 2], heads: [usize; 2], seed: u64) -> Case {
    let [m, n] = [entry.tile_m, entry.tile_n].map(|tile| tile as i32);
    let sequence = |[tiles, queries, blocks, keys, unused]: &Lengths| {
        [tiles * m + queries, blocks * n + keys, *unused].map(|rows| rows as usize)
    };
    Case { seed, ..tensors(entry, columns, [0; 3], heads).varlen(lengths.iter().map(sequence)) }
}

/// Returns the [`super::edges`] of a varlen kernel.
pub(super) fn edges(entry: &AttnInfo, seed: u64) -> Vec<Case> {
    use Layout::{Bhsd, Bshd};
    let [held, padded] = columns(entry);
    // The problems have head dims between the entries' head dims: 40, 72, 80.
    let other = if entry.head_dim == 96 { [72; 2] } else { padded };
    let shapes = [
        (RAGGED, held, [2, 1], Bshd),
        (SHORT, padded, [4, 2], Bhsd),
        (MANY, held, [1, 1], Bshd),
        (EVEN, other, [2, 2], Bhsd),
    ];
    let n = entry.tile_n;
    let window = |left, right| Mask::Window { left: Some(left), right: Some(right) };
    let masks = match entry.mask {
        MaskKind::Full => [(Mask::Full, None); 4],
        MaskKind::Causal => [(Mask::Causal, None); 4],
        MaskKind::Local => [
            (window(n - 1, n), None),
            (window(5, 3), Some(30.0)),
            (window(2, 1), None),
            (Mask::Causal, Some(5.0)),
        ],
        other => {
            let masks = at_edges(other, [entry.tile_m, entry.tile_n].map(|tile| tile as usize));
            std::array::from_fn(|turn| (masks[turn % masks.len()].0, None))
        }
    };
    let shapes = shapes.into_iter().zip(masks).enumerate();
    let cases = shapes.map(|(turn, ((lengths, columns, heads, layout), (mask, softcap)))| {
        let alignment = if turn == 3 { Alignment::TopLeft } else { Alignment::BottomRight };
        let case = case(entry, lengths, columns, heads, seed.wrapping_add(turn as u64));
        let case = Case { pages: Pages::Tensors(layout), mask, alignment, softcap, ..case };
        if turn == 1 { Case { device_lengths: device_lengths::others(), ..case } } else { case }
    });
    let mut cases: Vec<_> = cases.collect();
    if entry.mask == MaskKind::Local && takes_slopes(entry) {
        let slopes =
            [(RAGGED, Mask::Causal, Alignment::BottomRight), (SHORT, Mask::Full, Alignment::TopLeft)];
        cases.extend(slopes.map(|(lengths, mask, alignment)| {
            let case = case(entry, lengths, held, [2, 1], seed.wrapping_add(lengths.len() as u64));
            masked(case, (mask, alignment, None, true))
        }));
    }
    if entry.has_maps() {
        // In this case, every row is used, and there are several tiles for each block that the card holds.
        let Case { mask, alignment, .. } = cases[0];
        // The simulator computes sums of eight bits slowly.
        let heads = if entry.class() == Class::Quantised { 3 } else { 48 };
        let equal = case(entry, EQUAL, held, [heads; 2], seed.wrapping_add(9));
        let equal = if entry.splits { equal } else { of_a_card(equal) };
        cases.push(Case { mask, alignment, spare: [0; 2], ..equal });
    }
    of(entry, cases)
}

/// Returns the [`super::grid`] of a varlen kernel: its edges, and longer sequences with every mask, head
/// grouping and layout.
pub(super) fn grid(entry: &AttnInfo, seed: u64) -> Vec<Case> {
    let mut cases = edges(entry, seed);
    for mask in several(entry.mask).into_iter().filter(|(.., alibi)| !alibi || takes_slopes(entry)) {
        for group in [1, 4, 8] {
            let (turn, heads_k) = (cases.len(), if group == 8 { 1 } else { 2 });
            let (columns, heads) = (columns(entry)[turn / 2 % 2], [heads_k * group, heads_k]);
            let case = case(entry, LONG, columns, heads, seed.wrapping_add(turn as u64));
            let pages = Pages::Tensors([Layout::Bshd, Layout::Bhsd][turn % 2]);
            let device_lengths =
                if group == 4 { device_lengths::others() } else { case.device_lengths.clone() };
            cases.push(masked(Case { pages, device_lengths, ..case }, mask));
        }
    }
    of(entry, cases)
}

/// Returns the [`super::soak`] problem of a varlen kernel.
pub(super) fn soak(entry: &AttnInfo, seed: u64) -> Case {
    let (mask, alignment, softcap, _) = several(entry.mask)[0];
    let case = case(entry, RAGGED, columns(entry)[0], [2, 2], seed);
    masked(case, (mask, alignment, softcap, false)).of(entry)
}
