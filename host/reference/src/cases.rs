//! The problems that each attention kernel must solve.
use super::backward::backward_edges;
use super::case::{Case, Pages};
use super::masks::{Masked, at_edges, one, several};
use super::place::Layout;
use ferroflash::DType;
use ferroflash::kernels::{AttnInfo, MaskKind};
use ferroflash::plan::Problem;
use ferroflash::request::{Alignment, Mask, RowOutputs};
use ferroflash::spec::{Class, Isa, Pass, TileScheduler};

mod cache;
mod extras;
mod latent;
mod mixed;
mod statistics;
mod varlen;

pub use cache::paged_edges;
pub use extras::{e4m3_tensors, head_maxima, laid_pages, padded_queries};
pub use mixed::numbered_tiles;

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

/// Returns the edges of an entry, in problems that are small enough for the simulator.
pub fn edges(entry: &AttnInfo, seed: u64) -> Vec<Case> {
    match entry.pass {
        Pass::Forward => edges_of_class(entry, seed),
        Pass::Statistics => statistics::edges(entry, seed),
        _ => backward_edges(entry, seed),
    }
}

fn edges_of_class(entry: &AttnInfo, seed: u64) -> Vec<Case> {
    match entry.class() {
        Class::Quantised if entry.is_varlen() => varlen::edges(entry, seed),
        Class::Dense | Class::Quantised => dense_edges(entry, seed),
        Class::Varlen => varlen::edges(entry, seed),
        Class::Decode => seeded(cache::decode_edges(entry), seed),
        Class::Latent => seeded(latent::edges(entry), seed),
        Class::Listed => seeded(latent::listed(entry), seed),
        Class::Paged => seeded(paged_edges(entry), seed),
        Class::Few | Class::Many => seeded(mixed::edges(entry), seed),
    }
}

/// Returns the problems of an entry for a GPU: on tensors a grid, on a cache the [`edges`] and larger
/// problems.
pub fn grid(entry: &AttnInfo, seed: u64) -> Vec<Case> {
    let more = match entry.class() {
        _ if entry.pass != Pass::Forward => vec![],
        Class::Quantised if entry.is_varlen() => return varlen::grid(entry, seed),
        Class::Dense | Class::Quantised => return dense_grid(entry, seed),
        Class::Varlen => return varlen::grid(entry, seed),
        Class::Decode => cache::decode_long(entry),
        Class::Latent => latent::long(entry),
        Class::Listed => latent::listed_long(entry),
        Class::Paged => cache::paged_long(entry),
        Class::Few | Class::Many => mixed::long(entry),
    };
    edges(entry, seed).into_iter().chain(seeded(more, seed)).collect()
}

/// Returns problems with invalid `cu_seqlens`, which make several blocks write the same rows.
pub(super) fn corrupt(entry: &AttnInfo, seed: u64) -> Option<Case> {
    // Behind the attention, whose kernels race.
    if entry.pass == Pass::Statistics {
        return None;
    }
    let starts = entry.is_varlen() || matches!(entry.class(), Class::Paged | Class::Few | Class::Many);
    starts.then(|| Case { device_lengths: super::device_lengths::lost(), ..soak(entry, seed) })
}

/// Returns a problem with several blocks, heads and batches, for repeated launches.
pub fn soak(entry: &AttnInfo, seed: u64) -> Case {
    match entry.class() {
        _ if entry.pass == Pass::Statistics => edges(entry, seed).swap_remove(0),
        // Varlen sequences, or two batches. Both have grouped heads.
        _ if entry.pass != Pass::Forward => {
            let mut edges = backward_edges(entry, seed);
            let at = edges.iter().position(|case| case.varlen_queries.is_some()).unwrap_or(1);
            edges.swap_remove(at)
        }
        Class::Quantised if entry.is_varlen() => varlen::soak(entry, seed),
        Class::Dense | Class::Quantised => {
            let (mask, alignment, softcap, _) = several(entry.mask)[0];
            let case = tensors(entry, columns(entry)[0], [2, 203, 300], [4, 2]);
            Case { seed, ..masked(case, (mask, alignment, softcap, false)) }.of(entry)
        }
        Class::Varlen => varlen::soak(entry, seed),
        // The launches follow one another. Several blocks share the splits.
        _ => edges(entry, seed).swap_remove(0),
    }
}

fn seeded(cases: Vec<Case>, seed: u64) -> Vec<Case> {
    cases.into_iter().map(|case| case.seeded(seed)).collect()
}

/// Gives cases the scores of an entry, and masks of the cases' sizes. Every second case of a kernel of bits
/// has a softcap, which the kernel's parameters decide. Drops each case whose mask equals a simpler mask.
fn of(entry: &AttnInfo, cases: Vec<Case>) -> Vec<Case> {
    let may_cap = entry.mask == MaskKind::Bits && entry.takes_softcap();
    let all = cases.into_iter().zip([None, Some(20.0)].into_iter().cycle()).map(|(case, softcap)| {
        let softcap = case.softcap.or(softcap.filter(|_| may_cap));
        Case { softcap, ..case }.of(entry)
    });
    all.filter(|case| case.suits(entry.mask)).collect()
}

/// Returns whether an entry of [`MaskKind::Local`] supports ALiBi slopes. Hopper's entries do not.
fn takes_slopes(entry: &AttnInfo) -> bool {
    !entry.has_maps()
}

/// Returns numbers of columns of keys and of values that run on an entry: the entry's own, and smaller ones
/// that the entry pads.
fn columns(entry: &AttnInfo) -> [[usize; 2]; 2] {
    let held = entry.columns().map(|columns| columns as usize);
    [held, held.map(padded)]
}

/// Returns a number of columns that entries of `held` columns pad.
const fn padded(held: usize) -> usize {
    match held {
        32 => 24,
        64 => 40,
        96 => 80,
        128 => 112,
        192 => 160,
        256 => 224,
        // In kernels of head dim 512, two warps share the columns. Head dim 264 has one chunk more than the
        // first warp's half.
        512 => 264,
        other => other - 8,
    }
}

/// Returns a case of tensors with these columns of keys and of values, `[batch, queries, keys]`, and query
/// heads and key heads.
fn tensors(
    entry: &AttnInfo,
    [head_dim, head_dim_v]: [usize; 2],
    [batch, queries, keys]: [usize; 3],
    [heads_q, heads_k]: [usize; 2],
) -> Case {
    let p = Problem::new(entry.dtype, batch, queries, heads_q, head_dim).head_dim_v(head_dim_v);
    let p = p.precision(entry.precision());
    Case::tensors(p.seqlen_k(keys).heads_k(heads_k), Layout::Bshd, 1)
}

/// Returns a case with this mask and with these scores.
fn masked(case: Case, (mask, alignment, softcap, alibi): Masked) -> Case {
    Case { mask, alignment, softcap, alibi, ..case }
}

/// Returns the grid of an entry: every length with every mask of its kind. Layouts, head dims and batches
/// alternate. Entries with equal dtype, head dim and mask have equal grids. Short problems run with every
/// head grouping. Long problems run with one or two head groupings, because the reference is slow on them.
fn dense_grid(entry: &AttnInfo, seed: u64) -> Vec<Case> {
    let mut cases = vec![];
    for [queries, keys] in LENGTHS {
        for mask in several(entry.mask).into_iter().filter(|(.., alibi)| !alibi || takes_slopes(entry)) {
            let long = queries.max(keys) >= LONG;
            for (i, group) in GROUPS.into_iter().enumerate() {
                let turn = cases.len();
                // The number of cases selects the grouping, so that the groupings take turns.
                if long && (turn + i) % GROUPS.len() != 0 {
                    continue;
                }
                let (batch, heads_k) =
                    (if long { 1 } else { 1 + turn % 2 }, if long || group == 8 { 1 } else { 2 });
                let columns = columns(entry)[turn / 2 % 2];
                let case = tensors(entry, columns, [batch, queries, keys], [heads_k * group, heads_k]);
                let (pages, seed) = (Pages::Tensors(LAYOUTS[turn % 3]), seed.wrapping_add(turn as u64));
                cases.push(masked(Case { pages, seed, ..case }, mask));
            }
        }
    }
    cases.push(peaks(entry, seed.wrapping_add(cases.len() as u64)));
    of(entry, cases)
}

/// Returns a case in which every row of a tile sees one huge score in every key block, while its neighbour
/// rows see none. Kernels must rescale only this row.
///
/// In the simulator, it is enough that the rows of each place in a warp's sixteen have one in every key
/// block, because all warps run one code: with all heads, the same scores wander through the warps.
fn peaks(entry: &AttnInfo, seed: u64) -> Case {
    let (m, n) = (entry.tile_m as usize, entry.tile_n as usize);
    let keys = m.max(3 * n) + n / 2 + 1;
    let blocks = keys.div_ceil(n);
    let case = tensors(entry, columns(entry)[0], [1, m, keys], [16 * blocks; 2]);
    let (pages, peaks) = (Pages::Tensors(Layout::Bhsd), Some(entry.tile_n));
    let enough_heads = Some(16 * blocks.div_ceil(m.div_ceil(16)));
    Case { mask: one(entry.mask, n), pages, peaks, enough_heads, seed, ..case }
}

/// Marks a case of so many heads that the tiles are more than the SMs of a whole card. With seven heads, each
/// of two persistent blocks on two SMs has seven tiles or more, the first block one more than the second in
/// some problems.
fn of_a_card(case: Case) -> Case {
    Case { enough_heads: Some(7).filter(|enough| *enough < case.heads[1]), ..case }
}

/// Returns a case with one tile of queries and many key blocks. Small errors per block add up and become
/// visible.
fn long(entry: &AttnInfo, seed: u64) -> Case {
    let mask = match entry.mask {
        MaskKind::Local => Mask::Window { left: None, right: Some(0) },
        other => one(other, 2000),
    };
    Case { mask, seed, ..tensors(entry, columns(entry)[0], [1, 3, 8192], [1; 2]) }
}

/// Returns the edges of an entry on tensors:
///
/// | property | edges |
/// |---|---|
/// | lengths | one row; one row or one key more than a tile; exact tiles; 8192 keys |
/// | masks | rows and whole tiles without a key; window edges inside and at the end of a tile |
/// | outputs of rows | all that the entry writes |
/// | tensors | grouped heads; two batches; a padded head dim; every layout; rows that see a huge key |
fn dense_edges(entry: &AttnInfo, seed: u64) -> Vec<Case> {
    use Alignment::{BottomRight, TopLeft};
    use Layout::{Bhsd, Bshd, Packed};
    let (m, n) = (entry.tile_m as usize, entry.tile_n as usize);
    let [held, padded] = columns(entry);
    let case = |index: u64, lengths, heads: [usize; 2], columns, layout| {
        let (pages, seed) = (Pages::Tensors(layout), seed.wrapping_add(index));
        Case { pages, seed, ..tensors(entry, columns, lengths, heads) }
    };
    let shapes = [
        case(0, [1, 1, 1], [1, 1], held, Bshd),
        case(1, [2, 1, n + 1], [4, 2], padded, Bhsd),
        case(2, [1, m, 3 * n], [1, 1], held, Bshd),
        case(3, [1, m + 1, 2 * n + 1], [2, 1], held, Bhsd),
        case(4, [1, m + 17, m + 17], [2, 2], padded, Packed),
        case(5, [1, m + 3, n - 1], [1, 1], held, Packed),
    ];
    let shape = |index: usize| shapes[index].clone();
    // With this alignment the last query sees the last key, so the first tile of queries sees no key.
    let unseen = case(6, [1, 2 * m + 3, m / 2], [2, 1], padded, Packed);
    // Splits have different lengths in each tile. If the first query sees the first key, some splits have no
    // keys.
    let sliced =
        [case(8, [2, 3, 11 * n + 5], [2, 1], held, Bshd), case(9, [1, m + 1, 6 * n], [1, 1], padded, Bhsd)];
    // There are more tiles than a simulated card with little shared memory holds at once.
    let many = case(7, [1, 3, 5], [320, 320], held, Bshd);
    let with = |case: Case, mask, alignment, softcap| Case { mask, alignment, softcap, ..case };
    let alibi = |case: Case| Case { alibi: true, ..case };
    let window =
        |left: usize, right: usize| Mask::Window { left: Some(left as u32), right: Some(right as u32) };
    let mut all = match entry.mask {
        MaskKind::Full => shapes.to_vec(),
        MaskKind::Causal => {
            let top_left = [3, 5].map(|index| with(shape(index), Mask::Causal, TopLeft, None));
            let bottom_right = shapes.into_iter().chain([unseen]);
            bottom_right.map(|case| with(case, Mask::Causal, BottomRight, None)).chain(top_left).collect()
        }
        MaskKind::Local => vec![
            with(shape(0), window(0, 0), BottomRight, None),
            with(shape(1), window(n, 0), BottomRight, Some(30.0)),
            with(shape(2), window(n - 1, n), BottomRight, None),
            with(shape(3), window(5, 3), BottomRight, None),
            with(shape(3), Mask::Window { left: Some(n as u32), right: None }, TopLeft, None),
            with(shape(4), Mask::Causal, BottomRight, Some(5.0)),
            with(shape(4), Mask::Full, BottomRight, Some(2.0)),
            with(shape(5), window(2, 1), BottomRight, None),
            with(unseen.clone(), window(2, 1), BottomRight, None),
            alibi(with(shape(1), Mask::Full, BottomRight, None)),
            alibi(with(shape(3), Mask::Causal, BottomRight, None)),
            alibi(with(shape(4), window(n, 5), TopLeft, Some(5.0))),
            alibi(with(unseen, Mask::Full, BottomRight, None)),
        ],
        other => {
            let masks = at_edges(other, [m, n]);
            let each = shapes.clone().into_iter().chain([unseen]).zip(masks.iter().cycle());
            let each = each.map(|(case, (mask, alignment))| with(case, *mask, *alignment, None));
            let every = masks.iter().map(|(mask, alignment)| with(shape(3), *mask, *alignment, None));
            each.chain(every).collect()
        }
    };
    all.retain(|case| takes_slopes(entry) || !case.alibi);
    let mask = all[0].mask;
    match (entry.isa, entry.scheduler, entry.splits) {
        (Isa::Sm80, TileScheduler::Persistent, _) => all.push(with(many, mask, BottomRight, None)),
        // The simulator computes sums of eight bits slowly.
        (Isa::Sm90a, _, false) if entry.class() == Class::Quantised => {
            all.push(with(case(7, [1, 2 * m, 4 * n + 1], [3, 3], held, Bshd), mask, BottomRight, None));
        }
        // The second case has two tiles per head, which one block of a causal kernel takes. In the third
        // case, on a card with few SMs, a block has several tiles of `m` rows, each with several key blocks.
        (Isa::Sm90a, _, false) => all.extend(
            [
                of_a_card(many),
                of_a_card(case(7, [1, m + 3, n + 1], [140, 140], held, Bshd)),
                case(7, [1, 2 * m, 4 * n + 1], [3, 3], held, Bshd),
            ]
            .map(|case| with(case, mask, BottomRight, None)),
        ),
        (Isa::Sm80, _, true) => all.extend(sliced.map(|case| with(case, mask, TopLeft, None))),
        // `many` has more tiles, and `slices` has more splits, than the simulated cards can hold blocks at
        // once. `slices` computes many products, so only f16 kernels run it.
        (Isa::Sm90a, _, true) => {
            let slices = case(7, [1, 3, 24 * n], [67, 1], held, Bshd);
            all.extend(sliced.into_iter().chain([many]).map(|case| with(case, mask, TopLeft, None)));
            if entry.dtype == DType::F16 {
                all.push(with(slices, mask, BottomRight, None));
            }
        }
        (Isa::Sm80, _, false) => {}
    }
    let rows = RowOutputs::of(entry);
    if rows != RowOutputs::LSE && !entry.scores.maxima {
        let asking = [3, 6].into_iter().filter_map(|index| all.get(index).cloned());
        all.extend(asking.map(|case| Case { rows, ..case }).collect::<Vec<_>>());
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
    let problem = Problem::new(DType::F16, batch, seqlen, heads, 64);
    [Mask::Full, Mask::Causal].map(|mask| Case::tensors(problem.mask(mask), Layout::Bhsd, seed)).into()
}
