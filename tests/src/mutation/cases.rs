//! The problems that a mutant must pass: the edges of its entry, and sweeps that put the last query and the last key at every place where unrolled
//! code compares with them.
use ferroflash::reference::{Case, Layout, Memory, edges};
use ferroflash::{Alignment, DType, EntryInfo, Mask, MaskKind, Problem};

/// The edges of `entry`: most mutants fall over the first ones.
pub(super) fn first(entry: &EntryInfo) -> Vec<Memory> {
    let (m, n) = (entry.tile_m as usize, entry.tile_n as usize);
    let mut all = edges(entry, 1);
    all.sort_by_key(|case| {
        let Problem { seqlen_q, seqlen_k, heads_q, .. } = case.problem;
        let tails = seqlen_q % m != 0 && seqlen_k > 2 * n;
        (!tails, seqlen_q * seqlen_k * heads_q)
    });
    let mut all: Vec<_> = all.into_iter().map(|case| case.memory()).collect();
    all.extend([gaps(one(entry, m, 5 * n)), gaps(one(entry, m + 3, 2 * n))]);
    all
}

/// One head, whose tensors end where their buffers do.
fn one(entry: &EntryInfo, seqlen_q: usize, seqlen_k: usize) -> Case {
    let mask = match entry.mask {
        MaskKind::Full => Mask::Full,
        MaskKind::Causal => Mask::Causal,
        MaskKind::Local => Mask::Window { left: Some(2 * entry.tile_n), right: Some(3) },
    };
    let problem = Problem { seqlen_k, mask, ..Problem::new(entry.dtype, 1, seqlen_q, 1, entry.head_dim as usize) };
    Case { problem, layout: Layout::Bshd, seed: (seqlen_q + 7 * seqlen_k) as u64 }
}

/// The sweeps.
pub(super) fn sweeps(entry: &EntryInfo) -> Vec<Memory> {
    let (m, n) = (entry.tile_m as usize, entry.tile_n as usize);
    let held = entry.head_dim as usize;
    let one = |seqlen_q, seqlen_k| one(entry, seqlen_q, seqlen_k);
    let steep = |case: Case, scale| Case { problem: Problem { scale: Some(scale), ..case.problem }, ..case };
    let mut all = vec![];
    // Every remainder of unrolled loops, a diagonal in every block, and maxima that grow so much that sums are rescaled.
    for blocks in 3..=7 {
        all.extend([1.5, 4.0].map(|scale| steep(one(m, blocks * n + 3), scale)));
        all.extend([1.5, 4.0].map(|scale| steep(one(blocks * n, blocks * n), scale)));
    }
    // A lane holds columns 2l and 2l + 1 of every eight.
    all.extend((0..n / 8).flat_map(|group| {
        [one(1, 8 * group + 4), one(1, 8 * group + 5), one(1, n + 8 * group + 5), one(1, 2 * n + 8 * group + 4)]
    }));
    // The last key at the end of a block, and the diagonal at every distance from the corner of a tile.
    all.extend([1, 2, 3].map(|blocks| one(1, blocks * n)));
    if entry.mask != MaskKind::Full {
        all.extend((0..n).step_by(8).map(|shift| one(m, m + shift)));
        all.extend((8..m).step_by(8).map(|shift| one(m, m - shift)));
        all.extend((0..n).step_by(8).map(|group| one(group + 6, group + 6)));
    }
    // One instruction of a warp copies or stores 512 bytes of rows. The tensor ends where its buffer does: one row more is out of bounds.
    let rows = (256 / held).max(1);
    all.extend((1..=m).step_by(rows).map(|seqlen_q| one(seqlen_q, 5)));
    all.extend((1..=n).step_by(rows.min(4)).map(|seqlen_k| one(1, seqlen_k)));
    if entry.mask != MaskKind::Full {
        let top_left = |case: Case| Case { problem: Problem { alignment: Alignment::TopLeft, ..case.problem }, ..case };
        all.extend([1, 2, 3].map(|blocks| top_left(one(m + 9, blocks * n + 9))));
        all.extend([1, n - 1, n].map(|keys| top_left(one(m + 9, keys))));
    }
    if entry.mask == MaskKind::Local {
        // A window so wide that blocks at its left edge, more than one for a tile, are others than those at its right edge; one that is narrow.
        let wide = Mask::Window { left: Some((m + 2 * n) as u32), right: Some(0) };
        let narrow = Mask::Window { left: Some(0), right: Some(0) };
        all.extend((0..n).step_by(8).flat_map(|shift| {
            [(narrow, 0, None), (wide, m, None), (wide, m, Some(4.0))].map(|(mask, more, softcap)| {
                let case = one(m, m + 2 * n + more + shift);
                Case { problem: Problem { mask, softcap, ..case.problem }, ..case }
            })
        }));
        // Tiles whose rows see nothing, the last of them not whole.
        let past = Problem {
            mask: Mask::Window { left: Some(3), right: Some(1) },
            alignment: Alignment::TopLeft,
            ..one(1, 5).problem
        };
        all.extend((1..=m).step_by(rows).map(|tail| {
            let case = one(m + tail, 5);
            Case { problem: Problem { seqlen_q: m + tail, ..past }, ..case }
        }));
        let windows = [(Some(0), Some(0)), (Some(3), Some(1)), (None, Some(2)), (Some(1), None)];
        all.extend(windows.map(|(left, right)| {
            let case = one(m + 5, m + 3 * n + 2);
            Case { problem: Problem { mask: Mask::Window { left, right }, ..case.problem }, ..case }
        }));
    }
    all.into_iter().map(|case| case.memory()).collect()
}

/// `case` with half the head dim, and NaN in the other columns of Q, K and V: they belong to nobody.
fn gaps(case: Case) -> Memory {
    let held = case.problem.head_dim;
    let problem = Problem { head_dim: held / 2 + 8, ..case.problem };
    let mut memory = Case { problem, ..case }.memory();
    let not_a_number: u16 = if problem.dtype == DType::F16 { 0x7e00 } else { 0x7fc0 };
    for place in [&mut memory.q, &mut memory.k, &mut memory.v] {
        let row = held as i64;
        let rows = place.shape[1];
        place.strides = [rows as i64 * row, row, row, 1];
        let bits = &mut memory.buffers[place.buffer];
        let wide = bits
            .chunks(problem.head_dim)
            .flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(not_a_number, held - problem.head_dim)));
        *bits = wide.collect();
    }
    memory
}
