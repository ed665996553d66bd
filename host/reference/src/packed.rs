//! The test problems of varlen kernels.
use super::case::{Case, Values, columns, of, of_columns, takes_slopes};
use super::masks::{at_edges, several};
use super::memory::Layout;
use super::sequences::{Lengths, Sequences};
use super::told::Told;
use ferroflash::kernels::{AttnInfo, MaskKind};
use ferroflash::plan::Problem;
use ferroflash::request::{Alignment, Mask};

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

/// Returns a case of `lengths`. Three rows of each tensor belong to no sequence.
fn case(entry: &AttnInfo, lengths: &'static [Lengths], one: Problem, layout: Layout, seed: u64) -> Case {
    let tile = [entry.tile_m, entry.tile_n];
    let sequences = Sequences::of(lengths, tile);
    let problem = sequences.problem(one, [sequences.rows() + 3, sequences.key_rows() + 3]);
    Case { problem, layout, seed, values: Values::Packed { lengths, tile, told: &[Told::Filled] } }
}

/// Returns `case` with several launches of one plan.
fn told(case: Case, told: &'static [Told]) -> Case {
    match case.values {
        Values::Packed { lengths, tile, .. } => {
            Case { values: Values::Packed { lengths, tile, told }, ..case }
        }
        Values::Normal | Values::Peaks { .. } => case,
    }
}

/// The later launches have other lengths, and one of them has an invalid `seqused_k`.
const OTHERS: &[Told] = &[Told::Filled, Told::Fewer(1), Told::Garbage(2), Told::Filled];

/// Returns a case with invalid `cu_seqlens`.
pub(super) fn corrupt(entry: &AttnInfo, seed: u64) -> Case {
    told(soak(entry, seed), &[Told::Filled, Told::Lost(1), Told::Lost(2), Told::Lost(3), Told::Filled])
}

/// Returns the [`super::edges`] of a varlen kernel.
pub(super) fn edges(entry: &AttnInfo, seed: u64) -> Vec<Case> {
    let [held, padded] = columns(entry);
    // The problems have head dims between the entries' head dims: 40, 72, 80.
    let other = if entry.head_dim == 96 { [72; 2] } else { padded };
    let one = |heads_q, heads_k, columns| of_columns(entry, columns).heads_q(heads_q).heads_k(heads_k);
    let shapes = [
        (RAGGED, one(2, 1, held), Layout::Bshd),
        (SHORT, one(4, 2, padded), Layout::Bhsd),
        (MANY, one(1, 1, held), Layout::Bshd),
        (EVEN, one(2, 2, other), Layout::Bhsd),
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
    let cases =
        shapes.into_iter().zip(masks).enumerate().map(|(turn, ((lengths, one, layout), (mask, softcap)))| {
            let alignment = if turn == 3 { Alignment::TopLeft } else { Alignment::BottomRight };
            let one = one.mask(mask).alignment(alignment).softcap(softcap.unwrap_or_default());
            let case = case(entry, lengths, one, layout, seed.wrapping_add(turn as u64));
            if turn == 1 { told(case, OTHERS) } else { case }
        });
    let mut cases: Vec<_> = cases.collect();
    if entry.mask == MaskKind::Local && takes_slopes(entry) {
        let slopes =
            [(RAGGED, Mask::Causal, Alignment::BottomRight), (SHORT, Mask::Full, Alignment::TopLeft)];
        cases.extend(slopes.map(|(lengths, mask, alignment)| {
            let one = one(2, 1, held).mask(mask).alignment(alignment).alibi(true);
            case(entry, lengths, one, Layout::Bshd, seed.wrapping_add(lengths.len() as u64))
        }));
    }
    if entry.has_maps() {
        // In this case, every row is used, and there are several tiles for each block that the card holds.
        let Case { problem, .. } = cases[0];
        let one = one(48, 48, held).mask(problem.mask).alignment(problem.alignment);
        let mut equal = case(entry, EQUAL, one, Layout::Bshd, seed.wrapping_add(9));
        equal.problem.varlen = equal.problem.varlen.map(|rows| rows.map(|rows| rows - 3));
        cases.push(equal);
    }
    of(entry, cases)
}

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

/// Returns the [`super::grid`] of a varlen kernel: its edges, and longer sequences with every mask, head
/// grouping and layout.
pub(super) fn grid(entry: &AttnInfo, seed: u64) -> Vec<Case> {
    let mut cases = edges(entry, seed);
    for (mask, alignment, softcap, alibi) in several(entry.mask) {
        if alibi && !takes_slopes(entry) {
            continue;
        }
        for group in [1, 4, 8] {
            let (turn, heads_k) = (cases.len(), if group == 8 { 1 } else { 2 });
            let one = of_columns(entry, columns(entry)[turn / 2 % 2]);
            let one = one.heads_q(heads_k * group).heads_k(heads_k);
            let one = one.mask(mask).alignment(alignment).softcap(softcap.unwrap_or_default()).alibi(alibi);
            let layout = [Layout::Bshd, Layout::Bhsd][turn % 2];
            let case = case(entry, LONG, one, layout, seed.wrapping_add(turn as u64));
            cases.push(if group == 4 { told(case, OTHERS) } else { case });
        }
    }
    of(entry, cases)
}

/// Returns the [`super::soak`] problem of a varlen kernel.
pub(super) fn soak(entry: &AttnInfo, seed: u64) -> Case {
    let (mask, alignment, softcap, _) = several(entry.mask)[0];
    let one = of_columns(entry, columns(entry)[0]).heads_q(2).heads_k(2);
    let one = one.mask(mask).alignment(alignment).softcap(softcap.unwrap_or_default());
    of(entry, vec![case(entry, RAGGED, one, Layout::Bshd, seed)]).remove(0)
}
