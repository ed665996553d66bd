//! The test problems of the kernels of mixed batches.
use super::cache::{less, paged_long};
use crate::case::{Case, Pages};
use crate::device_lengths::{self, DeviceLengths};
use ferroflash::DType;
use ferroflash::request::{Mask, Splits};
use ferroflash::spec::{self, AttnInfo, Class, MaskKind};

/// Returns problems that hit the edges of the kernels of mixed batches. `entry` is the decode kernel. A work
/// tile has 128 queries and stages of at most 64 keys.
///
/// | property | edges |
/// |---|---|
/// | queries | none, few and many; numbers on both sides of the maximum that decode takes |
/// | splits | every kind of split and combine |
/// | sequences | more than a warp has lanes |
/// | tensors | missing rows and columns |
/// | integers | other integers under one plan |
/// | scores | sinks, if there are kernels for them; windows and softcap in general kernels |
pub(super) fn edges(entry: &AttnInfo) -> Vec<Case> {
    let [m, n] = [128, 64];
    let case = |filled: &[usize], heads| Case { heads, mask: Mask::Causal, ..Case::on(entry, filled) };
    // There are four query heads per key head, so decode takes up to four queries.
    let keys = [2 * n + 1, m + 3, 0, 5, 300, 0, 40, 64, 3];
    let mixed = case(&keys, [8, 2]).varlen_queries([1, m + 3, 2, 0, 4, 7, 5, 3, 4]);
    // Nobody reads the scales of a sequence without queries.
    let unread = Case { poisoned_scales: entry.kv_dtype == DType::Int8, ..mixed.clone() };
    let device_lengths = vec![
        DeviceLengths::Filled,
        DeviceLengths::Fewer(1),
        DeviceLengths::Garbage(2),
        DeviceLengths::Garbage(3),
        DeviceLengths::Filled,
    ];
    let many: Vec<_> = (0..40).map(|b| if b == 20 { 400 } else { 7 * b % 45 }).collect();
    let queries: Vec<_> = (0..40).map(|b| [1, 3, 1, 0, 1, 2, 17][b % 7]).collect();
    let rows = entry.tile_m as usize;
    let all = vec![
        Case { pages: Pages::Nhd(16), splits: Splits::Keys(128), ..unread },
        Case { pages: Pages::Hnd(3), splits: Splits::Keys(128), counters: false, ..mixed.clone() },
        Case { pages: Pages::Rows, mask: Mask::Full, ..mixed.clone() },
        Case { head_dim: less(entry), pages: Pages::Interleaved(1), device_lengths, ..mixed },
        // In the first case, one query fills the rows of a decode block, so a sequence of two queries runs on
        // the prefill kernel. In the second case, all SMs share one sequence.
        Case { heads: [rows, 1], ..case(&[1500, 2, 9], [1, 1]).varlen_queries([1, 2, 9]) },
        Case { counters: false, pages: Pages::Nhd(7), ..case(&many, [2, 1]).varlen_queries(queries) },
        // In the first case, every sequence has few queries. In the second case, every sequence has many
        // queries.
        case(&[90, 0, 33], [3, 1]).varlen_queries([5, 1, 2]),
        Case { pages: Pages::Nhd(32), ..case(&[90, 40], [16, 2]).varlen_queries([40, 3]) },
    ];
    let sinks = spec::attention().filter(|many| many.scores.sink && many.class() == Class::Many);
    let takes_sinks = sinks.map(|many| many.contract).any(|many| spec::beside(entry).any(|own| own == many));
    let sunk = all.iter().take(if takes_sinks { 5 } else { 0 }).cloned();
    let sunk: Vec<_> = sunk.map(|case| Case { sinks: true, ..case }).collect();
    let all = all.into_iter().chain(sunk).enumerate();
    all.map(|(turn, case)| if entry.mask == MaskKind::Local { general(case, turn) } else { case }).collect()
}

/// Returns the case with a window or a softcap. Windows begin within the keys of a split, or behind its end.
fn general(case: Case, turn: usize) -> Case {
    let window = |left, right| Mask::Window { left: Some(left), right: Some(right) };
    let (mask, softcap) = match turn % 5 {
        0 => (window(70, 0), None),
        1 => (window(5, 3), Some(30.0)),
        2 => (Mask::Window { left: Some(300), right: None }, None),
        3 => (window(127, 0), None),
        _ => (Mask::Causal, Some(5.0)),
    };
    Case { mask, softcap, ..case }
}

/// Returns mixed batches whose tiles one, two and three warps number, also with other integers under one
/// plan.
pub fn numbered_tiles(seed: u64) -> Vec<Case> {
    let mixed = |count: usize| {
        let of_sequence = |numbers: [usize; 6]| (0..count).map(|b| numbers[b % 6]).collect::<Vec<_>>();
        let case =
            Case { heads: [4, 1], mask: Mask::Causal, ..Case::new(of_sequence([40, 9, 0, 140, 7, 30])) };
        Case { pages: Pages::Nhd(16), ..case }.varlen_queries(of_sequence([1, 5, 4, 130, 0, 6]))
    };
    let all =
        [mixed(7), mixed(31), Case { device_lengths: device_lengths::others(), ..mixed(32) }, mixed(70)];
    all.into_iter().map(|case| Case { max_k: 1100, ..case }.seeded(seed)).collect()
}

/// Returns larger mixed batches, for a GPU.
pub(super) fn long(entry: &AttnInfo) -> Vec<Case> {
    let mixed = paged_long(entry).swap_remove(0);
    let heads = [[8, 2], [entry.tile_m as usize, 1], [2, 2]];
    let all = heads.map(|heads| Case { heads, ..mixed.clone() }).into_iter().enumerate();
    all.map(|(turn, case)| if entry.mask == MaskKind::Local { general(case, turn) } else { case }).collect()
}
