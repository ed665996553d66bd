//! Launches of forward kernels: the edge cases of each entry, and sweeps. The sweeps put the last query and
//! the last key at every position that unrolled code may compare.
use super::{Subject, trial};
use ferroflash::driver::SimDriver;
use ferroflash::kernels::{AttnInfo, MaskKind};
use ferroflash::plan::Problem;
use ferroflash::request::{Alignment, Mask};
use ferroflash::{Attention, DType};
use rayon::prelude::*;
use reference::{BackwardMemory, Case, Layout, Loaded, Memory, Pages, Reference, edges};

/// This number of cases, from the first one on, also run without an LSE.
const EDGES: usize = 10;

/// The cases of `entry`. If `subject` is a combine kernel, `entry` is the kernel that writes the splits which
/// `subject` combines.
pub(super) fn cases(subject: &Subject, entry: &'static AttnInfo) -> Vec<trial::Case> {
    let (edges, gaps) = first(entry);
    let first: Vec<_> = edges.iter().map(Case::memory).chain(gaps).collect();
    let without: Vec<_> = first.iter().take(EDGES).cloned().map(|memory| (memory, false, false)).collect();
    let first = first.into_iter().map(|memory| (memory, true, false));
    let sweeps = if subject.merges() { merges(entry) } else { sweeps(entry) };
    let sweeps = sweeps.into_iter().map(|memory| (memory, true, true));
    let all = first.chain(without).chain(sweeps).filter(|(memory, ..)| is_solved(entry, memory));
    let all: Vec<_> = all.collect();
    let all = all.into_par_iter().map(|(memory, lse, sweep)| launch(entry, memory, lse, sweep));
    let is_plain = entry.mask == MaskKind::Causal && !entry.is_varlen();
    all.chain(is_plain.then(|| infinite(entry))).collect()
}

/// A few cases under one schedule: the first edge cases, and rows with gaps.
pub(super) fn few(entry: &'static AttnInfo) -> Vec<trial::Case> {
    let (edges, gaps) = first(entry);
    let few = edges.iter().take(3).map(Case::memory).chain(gaps);
    let few = few.filter(|memory| is_solved(entry, memory));
    let few: Vec<_> = few.collect();
    few.into_par_iter().map(|memory| launch(entry, memory, true, true)).collect()
}

/// Whether `entry` solves the problem. A kernel of a mask with parameters does not solve problems whose mask
/// equals a simpler mask.
fn is_solved(entry: &AttnInfo, memory: &Memory) -> bool {
    let is_plain = matches!(entry.mask, MaskKind::Full | MaskKind::Causal | MaskKind::Local);
    is_plain || memory.problem.mask_kind() == entry.mask
}

/// A launch of `entry`, with or without an LSE.
fn launch(entry: &'static AttnInfo, memory: Memory, lse: bool, sweep: bool) -> trial::Case {
    let reference = Reference::new(&memory.inputs().expect("cases are valid"));
    let name = memory.problem.to_string();
    let launch = move |attention: &Attention<SimDriver>| {
        let loaded = Loaded::new(attention, &memory, Some(entry.contract.symbol))?;
        let loaded = if lse { loaded } else { loaded.without_lse() };
        let verdict = loaded.run()?.judge(&reference, memory.problem.dtype);
        Ok(verdict.expect("the problem's shape").failures().collect())
    };
    trial::Case { name, sweep, launch: Box::new(launch) }
}

/// The edge cases of `entry`, in an order in which most mutants fail early, and two with gaps between rows.
fn first(entry: &AttnInfo) -> (Vec<Case>, [Memory; 2]) {
    let (m, n) = (entry.tile_m as usize, entry.tile_n as usize);
    let mut all = edges(entry, 1);
    all.sort_by_key(|case| {
        let Problem { seqlen_q, seqlen_k, heads_q, .. } = case.problem();
        let tails = seqlen_q % m != 0 && seqlen_k > 2 * n;
        (!tails, seqlen_q * seqlen_k * heads_q)
    });
    let lay = if entry.is_varlen() { varlen } else { |case: Case| case.memory() };
    (all, [one(entry, m, 5 * n), one(entry, m + 3, 2 * n)].map(|case| gaps(case, lay)))
}

/// A case with one head. Each tensor ends where its buffer ends.
fn one(entry: &AttnInfo, seqlen_q: usize, seqlen_k: usize) -> Case {
    let mask = match entry.mask {
        MaskKind::Full => Mask::Full,
        MaskKind::Causal => Mask::Causal,
        MaskKind::Local => Mask::Window { left: Some(2 * entry.tile_n), right: Some(3) },
        other => reference::one_mask(other, entry.tile_n as usize),
    };
    let problem = Problem::new(entry.dtype, 1, seqlen_q, 1, entry.head_dim as usize).seqlen_k(seqlen_k);
    // With an odd seed, TMA accepts the bias.
    let odd = entry.has_maps() && entry.scores.bias.is_some();
    let seed = (seqlen_q + 7 * seqlen_k) as u64 | u64::from(odd);
    Case::tensors(problem.mask(mask), Layout::Bshd, seed).of(entry)
}

/// The sweeps.
fn sweeps(entry: &AttnInfo) -> Vec<Memory> {
    let (m, n) = (entry.tile_m as usize, entry.tile_n as usize);
    let held = entry.head_dim as usize;
    let one = |seqlen_q, seqlen_k| one(entry, seqlen_q, seqlen_k);
    let steep = |case: Case, scale| Case { scale: Some(scale), ..case };
    let mut all = vec![];
    // These cases have every remainder of unrolled loops over blocks that all rows see, and a diagonal in
    // every block. Maxima grow so much that the kernel must rescale sums: by more than 2^16, the range of f16
    // probabilities, and by more than 2^127, the range of bf16 probabilities.
    let partly = if entry.mask == MaskKind::Full { 0 } else { m.div_ceil(n) };
    let scales = if entry.dtype == DType::F16 { [1.5, 4.0] } else { [1.5, 16.0] };
    for blocks in 3..=7 {
        all.extend(scales.map(|scale| steep(one(m, (partly + blocks) * n + 3), scale)));
        all.extend(scales.map(|scale| steep(one(blocks * n, blocks * n), scale)));
    }
    // A lane holds columns 2l and 2l + 1 of every eight columns.
    all.extend((0..n / 8).flat_map(|group| {
        [
            one(1, 8 * group + 4),
            one(1, 8 * group + 5),
            one(1, n + 8 * group + 5),
            one(1, 2 * n + 8 * group + 4),
        ]
    }));
    // These cases put the last key at the end of a block, and the diagonal at every distance from a tile's
    // corner.
    all.extend([1, 2, 3].map(|blocks| one(1, blocks * n)));
    if entry.mask != MaskKind::Full {
        all.extend((0..n).step_by(8).map(|shift| one(m, m + shift)));
        all.extend((8..m).step_by(8).map(|shift| one(m, m - shift)));
        all.extend((0..n).step_by(8).map(|group| one(group + 6, group + 6)));
    }
    // One instruction of a warp copies or stores 512 bytes of rows. The tensor ends where its buffer ends, so
    // one more row would be out of bounds.
    let rows = (256 / held).max(1);
    all.extend((1..=m).step_by(rows).map(|seqlen_q| one(seqlen_q, 5)));
    all.extend((1..=n).step_by(rows.min(4)).map(|seqlen_k| one(1, seqlen_k)));
    if entry.mask != MaskKind::Full {
        let top_left = |case: Case| Case { alignment: Alignment::TopLeft, ..case };
        all.extend([1, 2, 3].map(|blocks| top_left(one(m + 9, blocks * n + 9))));
        all.extend([1, n - 1, n].map(|keys| top_left(one(m + 9, keys))));
        if entry.splits {
            // This case has more splits than key blocks that the rows see, so a partial tile has empty
            // splits.
            all.extend((1..=m).step_by(rows).map(|seqlen_q| top_left(one(seqlen_q, 8 * n))));
        }
    }
    if entry.mask == MaskKind::Local {
        // In the wide window, a tile has several blocks at the left edge, and they are not the blocks at the
        // right edge. The other window is narrow.
        let wide = Mask::Window { left: Some((m + 2 * n) as u32), right: Some(0) };
        let narrow = Mask::Window { left: Some(0), right: Some(0) };
        all.extend((0..n).step_by(8).flat_map(|shift| {
            [(narrow, 0, None), (wide, m, None), (wide, m, Some(4.0))].map(|(mask, more, softcap)| Case {
                mask,
                softcap,
                ..one(m, m + 2 * n + more + shift)
            })
        }));
        all.extend(capped(one(m, m + 2 * n + 5)));
        // In these tiles, rows see no key. The last tile is partial.
        let mask = Mask::Window { left: Some(3), right: Some(1) };
        let past = |tail: usize| Case { mask, alignment: Alignment::TopLeft, ..one(m + tail, 5) };
        all.extend((1..=m).step_by(rows).map(past));
        let windows = [(Some(0), Some(0)), (Some(3), Some(1)), (None, Some(2)), (Some(1), None)];
        all.extend(
            windows.map(|(left, right)| Case {
                mask: Mask::Window { left, right },
                ..one(m + 5, m + 3 * n + 2)
            }),
        );
    }
    if entry.mask == MaskKind::Bits {
        all.extend(capped(one(m, m + 2 * n + 5)));
    }
    if entry.splits && entry.has_maps() {
        // On the 132 SMs of an H200, some blocks have two splits, and the second split needs the stages of
        // the first.
        all.push(Case { heads: [134; 2], ..one(1, 4 * n) });
    }
    // These cases have every number of 16-byte chunks at which a comparison of columns meets equality, in
    // tiles that see keys and in tiles that see none.
    let narrow = |case: Case, head_dim| Case { head_dim, ..case };
    for head_dim in (8..held).step_by(32) {
        all.push(narrow(one(m, n + 5), head_dim));
    }
    if entry.mask != MaskKind::Full {
        // The row behind a tile that sees no key sees one.
        all.extend([one(m, 1), one(2 * m, m)]);
        // In the packed layout, columns that no kernel may write lie between the rows of O.
        let packed = |case: Case| Case { pages: Pages::Tensors(Layout::Packed), ..case };
        all.extend(
            (8..held)
                .step_by(32)
                .chain([held])
                .map(|head_dim| packed(narrow(one(2 * m + 3, m / 2), head_dim))),
        );
    }
    let in_rounds = entry.has_maps() && !entry.splits;
    let seams = if in_rounds { seams(entry) } else { vec![] };
    if entry.is_varlen() {
        return all.into_iter().map(varlen).chain(seams).collect();
    }
    if entry.has_maps() {
        // TMA takes no rows with a stride of 0.
        return all.into_iter().map(|case| case.memory()).chain(seams).collect();
    }
    let mut repeats = vec![one(m, 2 * n)];
    repeats.extend((2..=8).map(|blocks| one(m, (partly + blocks) * n + 3)));
    if entry.mask == MaskKind::Local {
        // There are blocks at both edges of the window, and several blocks between them.
        let wide = Mask::Window { left: Some((m + 4 * n) as u32), right: Some(0) };
        repeats.push(Case { mask: wide, ..one(m, 2 * m + 6 * n) });
    }
    // A key that the kernel should not see has a score of 0. In bf16, the tolerance may hide this key, unless
    // the scores of the other keys are far below 0.
    let mut crowded = vec![];
    if entry.dtype == DType::Bf16 {
        let keys =
            (0..n / 8).flat_map(|group| [8 * group + 4, 8 * group + 5, n + 8 * group + 4, n + 8 * group + 5]);
        crowded.extend(keys.map(|keys| steep(one(1, keys), 4.0)));
    }
    let crowded = crowded.into_iter().map(opposed);
    all.into_iter()
        .map(|case| case.memory())
        .chain(repeats.into_iter().map(repeated))
        .chain(crowded)
        .collect()
}

/// `case` with three softcaps: a modest one, one far above the scores, and a large one near the scores. With
/// the last two softcaps, the hyperbolic tangents need a relative precision.
fn capped(case: Case) -> [Case; 3] {
    [(4.0, case.scale), (1e8, case.scale), (1500.0, Some(400.0))].map(|(softcap, scale)| Case {
        softcap: Some(softcap),
        scale,
        ..case.clone()
    })
}

/// Cases with edges of masks at every column and row of the key block that a tile takes first. The first
/// scores of a tile are computed beside the end of the previous tile, and have their own mask.
fn seams(entry: &AttnInfo) -> Vec<Memory> {
    let (m, n) = (entry.tile_m as usize, entry.tile_n as usize);
    let one = |seqlen_q, seqlen_k| one(entry, seqlen_q, seqlen_k);
    // These cases have whole key blocks. The last queries see all keys of the last block, so the diagonal
    // crosses this block. The diagonal moves with the number of queries, and the end of the keys cuts the
    // diagonal.
    let whole = (m + n).next_multiple_of(n);
    let diagonals = || (0..16).step_by(4).flat_map(|less| [one(m, whole - less), one(m - less, whole)]);
    // Each query sees only one key, so a wrong key would be the only key that it sees.
    let alone = Mask::Window { left: Some(0), right: Some(0) };
    let all: Vec<_> = match entry.mask {
        MaskKind::Full => (0..n).step_by(8).flat_map(|at| [one(1, at + 4), one(1, at + 5)]).collect(),
        MaskKind::Causal => diagonals().collect(),
        MaskKind::Local => {
            let narrow = diagonals().map(|case| Case { mask: alone, ..case });
            narrow.chain(capped(one(m, whole))).collect()
        }
        MaskKind::Prefix | MaskKind::Chunked | MaskKind::Bits | MaskKind::Own => {
            unreachable!("no line of the table has this mask")
        }
    };
    let packs = entry.is_varlen();
    all.into_iter().map(|case| if packs { varlen_before(case) } else { of_heads(case) }).collect()
}

/// `case` with so many heads that a block of the simulated card takes several heads one after the other.
fn of_heads(case: Case) -> Memory {
    Case { heads: [3; 2], ..case }.memory()
}

/// Numbers of queries, of keys and of unused rows of the short sequence in a pair.
const SHORT: [usize; 3] = [2, 3, 0];

/// `case` as the second of two sequences, the first of which is short.
fn varlen(case: Case) -> Memory {
    let own = [case.queries, case.max_k, 0];
    sequences(case, [SHORT, own])
}

/// `case` as the first of two sequences, the second of which is short. Blocks take the last tile first, so
/// they reach `case` after the short sequence.
fn varlen_before(case: Case) -> Memory {
    let own = [case.queries, case.max_k, 0];
    sequences(case, [own, SHORT])
}

/// `case` as two sequences that have these numbers of queries and keys.
fn sequences(case: Case, pair: [[usize; 3]; 2]) -> Memory {
    let pages = Pages::Tensors(Layout::Bshd);
    Case { spare: [0; 2], pages, ..case }.varlen(pair).memory()
}

/// `case` with one query, whose keys are the negative of the query.
fn opposed(case: Case) -> Memory {
    let mut memory = case.memory();
    let key: Vec<u16> = memory.buffers[memory.q.buffer].iter().map(|bits| bits ^ 0x8000).collect();
    memory.buffers[memory.k.buffer].chunks_exact_mut(key.len()).for_each(|row| row.copy_from_slice(&key));
    memory
}

/// A launch with one key, whose value is infinite, and two queries. The first query does not see the key, so
/// its O must be 0. The second row is not judged.
fn infinite(entry: &'static AttnInfo) -> trial::Case {
    let mut memory = one(entry, 2, 1).memory();
    let infinity: u16 = if memory.problem.dtype == DType::F16 { 0x7c00 } else { 0x7f80 };
    memory.buffers[memory.v.buffer].fill(infinity);
    let name = format!("{}, infinite values", memory.problem);
    let launch = move |attention: &Attention<SimDriver>| {
        let outcome = Loaded::new(attention, &memory, Some(entry.contract.symbol))?.run()?;
        let first = &outcome.o()[..memory.problem.head_dim];
        let is_zero = first.iter().all(|bits| bits & 0x7fff == 0);
        Ok((!is_zero).then(|| "O of a row that sees no key".to_owned()).into_iter().collect())
    };
    trial::Case { name, sweep: true, launch: Box::new(launch) }
}

/// A backward problem whose inputs have gaps between rows, with a cut tile and several whole ones.
pub(super) fn gradients_with_gaps(entry: &AttnInfo) -> BackwardMemory {
    let case = one(entry, entry.tile_m as usize + 3, 3 * entry.tile_m as usize + 5);
    let apart = (entry.head_dim_v != entry.head_dim).then_some(entry.head_dim_v as usize);
    let (case, seed) = (Case { head_dim_v: apart, ..case }, case.seed);
    BackwardMemory::on(gaps(case, |case| case.memory()), seed, false)
}

/// Cases with every number of splits up to several rounds of the combine kernel. The rows fill the kernel's
/// blocks, or leave the last block partial.
fn merges(entry: &AttnInfo) -> Vec<Memory> {
    let n = entry.tile_n as usize;
    let slices = (1..=10).map(|slices| one(entry, 3, 2 * slices * n));
    slices.chain((1..=17).map(|rows| one(entry, rows, 4 * n))).map(|case| case.memory()).collect()
}

/// `case` with the smallest head dim, and with the same keys and values in every row. Each tensor ends where
/// its buffer ends.
fn repeated(case: Case) -> Memory {
    let mut memory = Case { head_dim: 8, ..case }.memory();
    for place in [&mut memory.k, &mut memory.v] {
        place.strides[1] = 0;
        memory.buffers[place.buffer].truncate(8);
    }
    memory
}

/// `case`, laid out by `lay`, with half the columns and 8 more. The other columns of Q, K and V are not used,
/// and contain NaN.
fn gaps(case: Case, lay: fn(Case) -> Memory) -> Memory {
    let narrow = |columns: usize| columns / 2 + 8;
    let (head_dim, head_dim_v) = (narrow(case.head_dim), case.head_dim_v.map(narrow));
    let mut memory = lay(Case { head_dim, head_dim_v, ..case });
    let not_a_number: u16 = if memory.problem.dtype == DType::F16 { 0x7e00 } else { 0x7fc0 };
    for place in [&mut memory.q, &mut memory.k, &mut memory.v] {
        let [_, rows, _, columns] = place.shape;
        let held = 2 * (columns - 8);
        let row = held as i64;
        place.strides = [rows as i64 * row, row, row, 1];
        let bits = &mut memory.buffers[place.buffer];
        let wide = bits
            .chunks(columns)
            .flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(not_a_number, held - columns)));
        *bits = wide.collect();
    }
    memory
}
