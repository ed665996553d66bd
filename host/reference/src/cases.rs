//! The problems that each entry must solve.
use super::case::{Case, Values, columns, of, of_columns, takes_slopes};
use super::masks::{at_edges, one, several};
use super::memory::Layout;
use super::packed;
use ferroflash::kernels::{AttnInfo, MaskKind};
use ferroflash::plan::Problem;
use ferroflash::request::{Alignment, Mask};
use ferroflash::spec::{Isa, TileScheduler};

/// `[seqlen_q, seqlen_k]` of the grid: one row, partial tiles, and exact tiles; equal lengths, more keys than
/// queries, and more queries than keys.
const LENGTHS: [[usize; 2]; 18] = [
    [1, 1],
    [17, 17],
    [64, 64],
    [113, 113],
    [128, 128],
    [203, 203],
    [511, 511],
    [512, 512],
    [1025, 1025],
    [2048, 2048],
    [1, 512],
    [17, 1],
    [113, 203],
    [203, 113],
    [64, 1025],
    [511, 64],
    [128, 2048],
    [17, 8192],
];
/// Query heads per key head.
const GROUPS: [usize; 3] = [1, 4, 8];
const LAYOUTS: [Layout; 3] = [Layout::Bshd, Layout::Bhsd, Layout::Packed];
/// A problem is long if it has a sequence of at least this length. A long problem runs with one or two head
/// groupings, and with one batch.
const LONG: usize = 1000;

/// Returns the grid of an entry: every length with every mask of its kind. Layouts, head dims and batches
/// alternate. Entries with equal dtype, head dim and mask have equal grids. Short problems run with every
/// head grouping. Long problems run with one or two head groupings, because the reference is slow on them.
pub fn grid(entry: &AttnInfo, seed: u64) -> Vec<Case> {
    if entry.is_varlen() {
        return packed::grid(entry, seed);
    }
    let mut cases = vec![];
    for [seqlen_q, seqlen_k] in LENGTHS {
        for (mask, alignment, softcap, alibi) in several(entry.mask) {
            if alibi && !takes_slopes(entry) {
                continue;
            }
            let long = seqlen_q.max(seqlen_k) >= LONG;
            for (i, group) in GROUPS.into_iter().enumerate() {
                let turn = cases.len();
                // The number of cases selects the grouping, so that the groupings take turns.
                if long && (turn + i) % GROUPS.len() != 0 {
                    continue;
                }
                let heads_k = if long || group == 8 { 1 } else { 2 };
                let problem = of_columns(entry, columns(entry)[turn / 2 % 2])
                    .batch(if long { 1 } else { 1 + turn % 2 })
                    .seqlen_q(seqlen_q)
                    .seqlen_k(seqlen_k)
                    .heads_q(heads_k * group)
                    .heads_k(heads_k)
                    .mask(mask)
                    .alignment(alignment)
                    .softcap(softcap.unwrap_or_default())
                    .alibi(alibi);
                let (layout, seed) = (LAYOUTS[turn % 3], seed.wrapping_add(turn as u64));
                cases.push(Case { problem, layout, seed, values: Values::Normal });
            }
        }
    }
    cases.push(peaks(entry, seed.wrapping_add(cases.len() as u64)));
    of(entry, cases)
}

/// Returns a problem with the entry's columns.
fn own(entry: &AttnInfo, batch: usize, seqlen: usize, heads: usize) -> Problem {
    let one = of_columns(entry, columns(entry)[0]).batch(batch);
    one.seqlen_q(seqlen).seqlen_k(seqlen).heads_q(heads).heads_k(heads)
}

/// Returns a case in which every row of a tile sees one huge score in every key block, while its neighbour
/// rows see none. Kernels must rescale only this row.
fn peaks(entry: &AttnInfo, seed: u64) -> Case {
    let (m, n) = (entry.tile_m as usize, entry.tile_n as usize);
    let seqlen_k = m.max(3 * n) + n / 2 + 1;
    let heads = 16 * seqlen_k.div_ceil(n);
    let mask = one(entry.mask, n);
    let problem = own(entry, 1, m, heads).seqlen_k(seqlen_k).mask(mask);
    Case { problem, layout: Layout::Bhsd, seed, values: Values::Peaks { block: entry.tile_n } }
}

/// Returns a case with one tile of queries and many key blocks. Small errors per block add up and become
/// visible.
fn long(entry: &AttnInfo, seed: u64) -> Case {
    let mask = match entry.mask {
        MaskKind::Local => Mask::Window { left: None, right: Some(0) },
        other => one(other, 2000),
    };
    let problem = own(entry, 1, 3, 1).seqlen_k(8192).mask(mask);
    Case { problem, layout: Layout::Bshd, seed, values: Values::Normal }
}

/// Returns the edges of an entry, in problems that are small enough for the simulator:
///
/// | property | edges |
/// |---|---|
/// | lengths | one row; one row or one key more than a tile; exact tiles; 8192 keys |
/// | masks | rows and whole tiles without a key; window edges inside and at the end of a tile |
/// | tensors | grouped heads; two batches; a padded head dim; every layout; rows that see a huge key |
pub fn edges(entry: &AttnInfo, seed: u64) -> Vec<Case> {
    if entry.is_varlen() {
        return packed::edges(entry, seed);
    }
    use Alignment::{BottomRight, TopLeft};
    let (m, n) = (entry.tile_m as usize, entry.tile_n as usize);
    let [held, padded] = columns(entry);
    let case = |index: u64, seqlen_q, seqlen_k, [heads_q, heads_k]: [usize; 2], columns, layout| Case {
        problem: of_columns(entry, columns)
            .seqlen_q(seqlen_q)
            .seqlen_k(seqlen_k)
            .heads_q(heads_q)
            .heads_k(heads_k),
        layout,
        seed: seed.wrapping_add(index),
        values: Values::Normal,
    };
    let two_batches = |case: Case| Case { problem: case.problem.batch(2), ..case };
    let shapes = [
        case(0, 1, 1, [1, 1], held, Layout::Bshd),
        two_batches(case(1, 1, n + 1, [4, 2], padded, Layout::Bhsd)),
        case(2, m, 3 * n, [1, 1], held, Layout::Bshd),
        case(3, m + 1, 2 * n + 1, [2, 1], held, Layout::Bhsd),
        case(4, m + 17, m + 17, [2, 2], padded, Layout::Packed),
        case(5, m + 3, n - 1, [1, 1], held, Layout::Packed),
    ];
    // With this alignment the last query sees the last key, so the first tile of queries sees no key.
    let unseen = case(6, 2 * m + 3, m / 2, [2, 1], padded, Layout::Packed);
    // Splits have different lengths in each tile. If the first query sees the first key, some splits have no
    // keys.
    let sliced = [
        two_batches(case(8, 3, 11 * n + 5, [2, 1], held, Layout::Bshd)),
        case(9, m + 1, 6 * n, [1, 1], padded, Layout::Bhsd),
    ];
    // There are more tiles than a simulated card with little shared memory holds at once.
    let many = case(7, 3, 5, [320, 320], held, Layout::Bshd);
    let with = |case: Case, mask, alignment, softcap: Option<f32>| Case {
        problem: case.problem.mask(mask).alignment(alignment).softcap(softcap.unwrap_or_default()),
        ..case
    };
    let alibi = |case: Case| Case { problem: case.problem.alibi(true), ..case };
    let window =
        |left: usize, right: usize| Mask::Window { left: Some(left as u32), right: Some(right as u32) };
    let mut all = match entry.mask {
        MaskKind::Full => shapes.to_vec(),
        MaskKind::Causal => {
            let top_left = [shapes[3], shapes[5]].map(|case| with(case, Mask::Causal, TopLeft, None));
            let bottom_right = shapes.into_iter().chain([unseen]);
            bottom_right.map(|case| with(case, Mask::Causal, BottomRight, None)).chain(top_left).collect()
        }
        MaskKind::Local => vec![
            with(shapes[0], window(0, 0), BottomRight, None),
            with(shapes[1], window(n, 0), BottomRight, Some(30.0)),
            with(shapes[2], window(n - 1, n), BottomRight, None),
            with(shapes[3], window(5, 3), BottomRight, None),
            with(shapes[3], Mask::Window { left: Some(n as u32), right: None }, TopLeft, None),
            with(shapes[4], Mask::Causal, BottomRight, Some(5.0)),
            with(shapes[4], Mask::Full, BottomRight, Some(2.0)),
            with(shapes[5], window(2, 1), BottomRight, None),
            with(unseen, window(2, 1), BottomRight, None),
            alibi(with(shapes[1], Mask::Full, BottomRight, None)),
            alibi(with(shapes[3], Mask::Causal, BottomRight, None)),
            alibi(with(shapes[4], window(n, 5), TopLeft, Some(5.0))),
            alibi(with(unseen, Mask::Full, BottomRight, None)),
        ],
        other => {
            let masks = at_edges(other, [m, n]);
            let each = shapes.into_iter().chain([unseen]).zip(masks.iter().cycle());
            let each = each.map(|(case, (mask, alignment))| with(case, *mask, *alignment, None));
            let every = masks.iter().map(|(mask, alignment)| with(shapes[3], *mask, *alignment, None));
            each.chain(every).collect()
        }
    };
    all.retain(|case| takes_slopes(entry) || !case.problem.alibi);
    let mask = all[0].problem.mask;
    match (entry.isa, entry.scheduler, entry.splits) {
        (Isa::Sm80, TileScheduler::Persistent, _) => all.push(with(many, mask, BottomRight, None)),
        // The second case has two tiles per head, which one block of a causal kernel takes.
        (Isa::Sm90a, _, false) => all.extend(
            [many, case(7, m + 3, n + 1, [140, 140], held, Layout::Bshd)]
                .map(|case| with(case, mask, BottomRight, None)),
        ),
        (Isa::Sm80, _, true) => all.extend(sliced.map(|case| with(case, mask, TopLeft, None))),
        // `many` has more tiles, and `slices` has more splits, than the simulated cards can hold blocks at
        // once. `slices` computes many products, so only f16 kernels run it.
        (Isa::Sm90a, _, true) => {
            let slices = case(7, 3, 24 * n, [67, 1], held, Layout::Bshd);
            all.extend(sliced.into_iter().chain([many]).map(|case| with(case, mask, TopLeft, None)));
            if entry.dtype == ferroflash::DType::F16 {
                all.push(with(slices, mask, BottomRight, None));
            }
        }
        (Isa::Sm80, _, false) => {}
    }
    all.extend([peaks(entry, seed.wrapping_add(10)), long(entry, seed.wrapping_add(11))]);
    of(entry, all)
}

/// Returns the smallest problem on which the predecessor's kernels failed: one head of 64 queries and keys,
/// full and causal.
pub fn reproducer(seed: u64) -> Vec<Case> {
    headline_of(1, 64, 1, seed)
}

/// Returns the predecessor's headline workload: f16, batch 1 and 2, 8 heads, 512 queries and keys, head dim
/// 64, full and causal.
pub fn headline(seed: u64) -> Vec<Case> {
    [1, 2].into_iter().flat_map(|batch| headline_of(batch, 512, 8, seed)).collect()
}

fn headline_of(batch: usize, seqlen: usize, heads: usize, seed: u64) -> Vec<Case> {
    let problem = Problem::new(ferroflash::DType::F16, batch, seqlen, heads, 64);
    let case =
        |mask| Case { problem: problem.mask(mask), layout: Layout::Bhsd, seed, values: Values::Normal };
    [Mask::Full, Mask::Causal].map(case).into()
}

/// Returns a problem with several blocks, heads and batches, for repeated launches.
pub fn soak(entry: &AttnInfo, seed: u64) -> Case {
    if entry.is_varlen() {
        return packed::soak(entry, seed);
    }
    let (mask, alignment, softcap, _) = several(entry.mask)[0];
    let problem = own(entry, 2, 203, 4)
        .mask(mask)
        .alignment(alignment)
        .softcap(softcap.unwrap_or_default())
        .seqlen_k(300)
        .heads_k(2);
    of(entry, vec![Case { problem, layout: Layout::Bshd, seed, values: Values::Normal }]).remove(0)
}
