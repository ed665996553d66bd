//! The problems that each backward kernel must solve.
use crate::case::Case;
use crate::device_lengths;
use crate::masks::{at_edges, one};
use crate::place::Layout;
use ferroflash::DType;
use ferroflash::kernels::{AttnInfo, MaskKind};
use ferroflash::plan::Problem;
use ferroflash::request::{Alignment, Mask};
use ferroflash::spec::{Class, PaddedVector};

/// Returns the edges of a kernel of dK and dV, in problems that are small enough for the simulator. Each
/// problem also runs the kernels of -LSE and delta, and of dQ.
///
/// | property | edges |
/// |---|---|
/// | lengths | one row; one row more or less than a tile or a stage; exact tiles; more queries than keys |
/// | padding | a last stage that ends behind the last block of -LSE and delta |
/// | masks and scores | both alignments; rows and tiles without a key; softcap; slopes; biases |
/// | scores | so low that a row behind the last key would have an infinite probability, 2^-LSE |
/// | sinks | with their gradient; of rows without a key |
/// | sequences | without queries, keys, or both; unused keys; rows of none; more than a warp searches at once |
/// | heads | grouped, in one block and in shares of several blocks |
/// | tensors | two batches; padded head dims of keys and of values; every layout |
pub fn backward_edges(entry: &AttnInfo, seed: u64) -> Vec<Case> {
    use Alignment::TopLeft;
    use Layout::{Bhsd, Bshd, Packed};
    let (keys, queries) = (entry.tile_m as usize, entry.tile_n as usize);
    let shape = |index: usize| {
        let (lengths, heads, fewer, layout) = [
            ([1, 1, 1], [1, 1], [0, 0], Bshd),
            ([2, 2 * queries + 1, keys + 1], [4, 2], [24, 8], Bhsd),
            ([1, queries - 1, 2 * keys + 3], [2, 1], [8, 24], Packed),
            ([1, keys + queries + 3, keys / 2], [1, 1], [0, 0], Packed),
            ([1, 256, keys], [4, 1], [0, 0], Bshd),
            ([1, queries + 9, queries + 9], [1, 1], [16, 0], Packed),
            ([1, 2 * queries + 1, keys + keys / 2 + 1], [1, 1], [0, 0], Bshd),
            ([1, PaddedVector::ROWS as usize, keys / 2 + 1], [2, 1], [0, 0], Bshd),
        ][index];
        let ([batch, seqlen_q, seqlen_k], seed) = (lengths, seed.wrapping_add(index as u64));
        let p = with_columns(entry, fewer, Problem::new(entry.dtype, batch, seqlen_q, heads[0], 1));
        Case::tensors(p.seqlen_k(seqlen_k).heads_k(heads[1]), layout, seed)
    };
    let of = |index: usize, mask: Mask| Case { mask, ..shape(index) };
    let window = |left: u32, right: u32| Mask::Window { left: Some(left), right: Some(right) };
    let forward = match entry.mask {
        MaskKind::Full => (0..6).map(shape).collect(),
        MaskKind::Causal => {
            let bottom_right = (0..6).map(|index| of(index, Mask::Causal));
            let top_left = [2, 3].map(|index| Case { alignment: TopLeft, ..of(index, Mask::Causal) });
            bottom_right.chain(top_left).collect::<Vec<_>>()
        }
        kind @ (MaskKind::Prefix | MaskKind::Chunked | MaskKind::Bits) => {
            let masks = at_edges(kind, [queries, keys]);
            let masks = masks.iter().cycle();
            let shapes = [1, 2, 3, 4, 5, 0, 2, 3];
            shapes
                .iter()
                .zip(masks)
                .map(|(at, (mask, alignment))| Case { alignment: *alignment, ..of(*at, *mask) })
                .collect()
        }
        _ if entry.is_unmodified() => {
            let bounds = [(0, 0), (20, 0), (200, 0), (5, 9), (30, 7)];
            let bottom_right = bounds.iter().enumerate().map(|(index, (l, r))| of(index, window(*l, *r)));
            bottom_right.chain([Case { alignment: TopLeft, ..of(5, window(40, 3)) }]).collect()
        }
        _ => vec![
            of(0, window(0, 0)),
            Case { softcap: Some(20.0), ..of(1, window(20, 0)) },
            Case { softcap: Some(2.0), ..of(2, Mask::Causal) },
            of(3, window(5, 9)),
            Case { alibi: true, ..shape(4) },
            Case { alignment: TopLeft, alibi: true, ..of(5, window(40, 3)) },
            Case { softcap: Some(30.0), ..of(1, Mask::Full) },
            Case { alibi: true, ..of(3, Mask::Causal) },
        ],
    };
    // The keys end within a block. The last tile of queries may have only one query, which sees them all.
    let low = if entry.dtype == DType::Bf16 { -100.0 } else { -20.0 };
    let mask = match entry.mask {
        MaskKind::Full => Mask::Full,
        MaskKind::Causal => Mask::Causal,
        MaskKind::Prefix | MaskKind::Chunked | MaskKind::Bits => one(entry.mask, keys),
        _ => window(40, 20),
    };
    // Or the last stage ends behind the last block of -LSE and of delta.
    let behind = (!PaddedVector::ROWS.is_multiple_of(entry.tile_n)).then_some(7);
    let low = [6, 2].into_iter().chain(behind).map(|index| Case { score: Some(low), ..of(index, mask) });
    let with_d_lse =
        |(at, forward): (usize, Case)| Case { sinks: at % 4 == 3, ..forward }.backward(at % 2 == 1);
    // Hopper's kernels take either batches or varlen sequences.
    let varlen =
        if entry.class() == Class::Dense && entry.has_maps() { vec![] } else { varlen(entry, seed).into() };
    // Both have a dLSE, and the second one has sinks.
    let is_modified = is_modified(entry);
    let varlen = varlen.into_iter().zip([1, 3]).map(|(case, at)| {
        let (softcap, alibi) = ((is_modified && at == 1).then_some(20.0), is_modified && at == 3);
        let case = Case { mask: of_entry(entry), softcap, alibi, ..case };
        (at, case.of(entry))
    });
    let varlen = varlen.filter(|(_, case)| case.suits(entry.mask));
    let forward = forward.into_iter().chain(low).map(|case| case.of(entry));
    let forward = forward.filter(|case| case.suits(entry.mask) && !entry.is_varlen()).enumerate();
    forward.chain(varlen).map(with_d_lse).collect()
}

/// Returns whether the kernel computes softcap and slopes. Another kernel may run plain windows.
pub fn is_modified(entry: &AttnInfo) -> bool {
    entry.mask == MaskKind::Local && !entry.is_unmodified()
}

/// Returns the problem with fewer columns than the kernel has, of keys and of values. Without
/// [`AttnInfo::has_own_values`], values have the columns of keys.
fn with_columns(entry: &AttnInfo, fewer: [usize; 2], p: Problem) -> Problem {
    let columns = |of: usize| entry.columns()[of] as usize - fewer[of];
    p.head_dim(columns(0)).head_dim_v(columns(usize::from(entry.has_own_values())))
}

/// Returns the mask of the kernel's varlen problems.
fn of_entry(entry: &AttnInfo) -> Mask {
    match entry.mask {
        MaskKind::Full => Mask::Full,
        MaskKind::Causal => Mask::Causal,
        _ => Mask::Window { left: Some(entry.tile_n), right: Some(3) },
    }
}

/// Returns varlen problems: sequences of all kinds, and many short sequences.
fn varlen(entry: &AttnInfo, seed: u64) -> [Case; 2] {
    let (keys, queries) = (entry.tile_m as usize, entry.tile_n as usize);
    let of = |heads: [usize; 2], fewer: usize, layout, seed| {
        let p = Problem::new(entry.dtype, 1, 1, heads[0], 1).heads_k(heads[1]);
        Case::tensors(with_columns(entry, [fewer; 2], p), layout, seed)
    };
    let ragged = [
        [queries + 1, keys + 3, 0],
        [0, 5, 0],
        [3, 0, 0],
        [5, keys - 1, keys + 9],
        [2 * queries, 7, 2],
        [0, 0, 0],
        [9, keys, 0],
    ];
    let many = (0..41).map(|at| match at {
        29 => [queries + 3, keys + 5, 0],
        7 => [0, 4, 0],
        33 => [1, 0, 0],
        _ => [2, 3, 0],
    });
    let ragged = of([2, 1], 8, Layout::Bshd, seed.wrapping_add(7)).varlen(ragged);
    let many = of([1, 1], 0, Layout::Bhsd, seed.wrapping_add(8)).varlen(many);
    [
        Case { device_lengths: device_lengths::others(), ..ragged },
        Case { alignment: Alignment::TopLeft, ..many },
    ]
}
