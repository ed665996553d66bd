//! Tests values of another number of columns than keys in the simulator: every kernel for such tensors, on
//! pairs of columns at and below its own, and lengths around its tile. `simulated.rs` runs each kernel on its
//! edges.
use ferroflash::DType;
use ferroflash::kernels::{AttnInfo, MaskKind, entries};
use ferroflash::plan::Problem;
use ferroflash::request::Mask;
use ferroflash::spec::{Queries, ScoreKinds};
use ferroflash_tests::{check, is_carried, on_every_core, simulator_with};
use ptx_sim::Options;
use reference::{Case, Layout};

/// Returns columns of keys and of values: the kernel's own, fewer of both, fewer of one, one chunk, more of
/// values.
fn columns(entry: &AttnInfo) -> [[usize; 2]; 6] {
    let [k, v] = entry.columns().map(|columns| columns as usize);
    let part = |of: usize| k / 24 * of * 8;
    [[k, v], [k - 16, v - 8], [k, v / 2], [part(2), 8], [8, v], [part(1), v]]
}

/// Returns problems around a kernel's tile: one query and one key, keys that end one before, at and one
/// behind a block, rows that see no key, grouped heads, each layout.
fn cases(entry: &AttnInfo) -> Vec<Case> {
    let [m, n] = [entry.tile_m, entry.tile_n].map(|tile| tile as usize);
    let lengths = [[1, 1], [1, 2 * n - 1], [m, 2 * n], [m + 1, n + 1], [m + n, n], [3, 4 * n + 1]];
    let mask = match entry.mask {
        MaskKind::Causal => Mask::Causal,
        MaskKind::Local => Mask::Window { left: Some(20), right: Some(3) },
        _ => Mask::Full,
    };
    let layouts = [Layout::Bshd, Layout::Bhsd, Layout::Packed];
    let all = columns(entry).into_iter().enumerate().flat_map(|(turn, columns)| {
        [0, 1].map(|second| (turn + 3 * second, columns, lengths[(turn + 3 * second) % lengths.len()]))
    });
    let case = |(turn, [head_dim, head_dim_v], [seqlen_q, seqlen_k]): (usize, [usize; 2], [usize; 2])| {
        let problem = Problem::new(entry.dtype, 1 + turn % 2, seqlen_q, 2, head_dim).head_dim_v(head_dim_v);
        let problem = problem.seqlen_k(seqlen_k).heads_k(1 + turn % 2).mask(mask);
        Case::tensors(problem, layouts[turn % 3], turn as u64)
    };
    all.map(case).collect()
}

#[test]
fn every_pair_of_columns() {
    let kernels: Vec<_> = entries()
        .filter(|e| e.has_own_values() && e.scores == ScoreKinds::NONE && is_carried(e.contract.symbol))
        .filter(|e| matches!(e.mask, MaskKind::Full | MaskKind::Causal | MaskKind::Local))
        .filter(|e| e.queries == Queries::Batched && !e.splits)
        // Hopper's kernels differ only in their sizes, so one type suffices.
        .filter(|e| e.head_dim != e.head_dim_v || e.dtype == DType::F16)
        .flat_map(|entry| cases(entry).into_iter().map(move |case| (entry, case)))
        .collect();
    assert!(!kernels.is_empty());
    on_every_core(&kernels, |(entry, case)| {
        check(&simulator_with(entry, Options::default()), entry, case);
    });
}
