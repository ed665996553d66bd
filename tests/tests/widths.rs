//! Tests values of another number of columns than keys in the simulator: every kernel for such tensors, on
//! pairs of columns at and below its own, and lengths around its tile. `simulated.rs` runs each kernel on its
//! edges.
use ferroflash::kernels::{AttnInfo, MaskKind, entries};
use ferroflash::plan::Problem;
use ferroflash::request::Mask;
use ferroflash_tests::{check, is_carried, on_every_core, simulator_with};
use ptx_sim::Options;
use reference::{Case, Layout, Values};

/// Columns of keys and of values: the kernels' own, fewer of both, fewer of one, one chunk, more of values.
const COLUMNS: [[usize; 2]; 6] = [[192, 128], [176, 120], [192, 64], [128, 8], [8, 128], [64, 128]];

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
    let all = COLUMNS.into_iter().enumerate().flat_map(|(turn, columns)| {
        [0, 1].map(|second| (turn + 3 * second, columns, lengths[(turn + 3 * second) % lengths.len()]))
    });
    let case = |(turn, [head_dim, head_dim_v], [seqlen_q, seqlen_k]): (usize, [usize; 2], [usize; 2])| {
        let problem = Problem::new(entry.dtype, 1 + turn % 2, seqlen_q, 2, head_dim).head_dim_v(head_dim_v);
        let problem = problem.seqlen_k(seqlen_k).heads_k(1 + turn % 2).mask(mask);
        Case { problem, layout: layouts[turn % 3], seed: turn as u64, values: Values::Normal }
    };
    all.map(case).collect()
}

#[test]
fn every_pair_of_columns() {
    let kernels: Vec<_> = entries()
        .filter(|e| e.head_dim != e.head_dim_v && !e.is_varlen() && is_carried(e.contract.symbol))
        .flat_map(|entry| cases(entry).into_iter().map(move |case| (entry, case)))
        .collect();
    assert!(!kernels.is_empty());
    on_every_core(&kernels, |(entry, case)| {
        check(&simulator_with(entry, Options::default()), entry, case);
    });
}
