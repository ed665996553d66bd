//! The problems that each entry on latent caches must solve.
use crate::case::{Case, Pages};
use crate::device_lengths::{self, DeviceLengths};
use ferroflash::DType;
use ferroflash::request::{Mask, Splits};
use ferroflash::spec::AttnInfo;

/// DeepSeek's score factor: before absorption, keys have 128 columns and 64 rotary columns.
const DEEPSEEK: f32 = 0.072_168_78;

/// Returns one query with the entry's number of rows as its heads, on one latent head.
fn plain(entry: &AttnInfo, filled: &[usize]) -> Case {
    Case {
        latent: true,
        heads: [entry.tile_m as usize, 1],
        mask: Mask::Causal,
        scale: Some(DEEPSEEK),
        pages: Pages::Nhd(16),
        ..Case::on(entry, filled)
    }
}

/// Returns numbers of columns of keys and of values that no entry has. Rows with scales have all columns.
fn fewer_columns(entry: &AttnInfo) -> [usize; 2] {
    if entry.kv_dtype == DType::E4m3Scaled { [576, 256] } else { [288, 256] }
}

/// Returns problems that hit an entry's edges:
///
/// | property | edges |
/// |---|---|
/// | keys | no key; lengths around tiles and stages; invalid lengths; pages of every kind that the entry reads |
/// | splits | all kinds of splits and of combining them |
/// | rows | several blocks of rows; missing rows; up to four queries |
/// | columns and heads | fewer columns; two latent heads |
pub(super) fn edges(entry: &AttnInfo) -> Vec<Case> {
    let rows = entry.tile_m as usize;
    let edges = plain(entry, &[0, 1, 15, 17, 31, 32, 33, 65, 128, 300]);
    let ([head_dim, head_dim_v], device_lengths) = (fewer_columns(entry), device_lengths::others());
    let cases = vec![
        Case { splits: Splits::Exactly(3), sinks: true, ..edges.clone() },
        Case { pages: Pages::Nhd(1), splits: Splits::Exactly(2), counters: false, ..edges.clone() },
        Case { pages: Pages::Nhd(3), splits: Splits::Keys(128), mask: Mask::Full, ..edges },
        // These cases have automatic splits. In the first case, all SMs share one sequence. The second case
        // has more sequences than one warp can search at once.
        Case { pages: Pages::Dense, ..plain(entry, &[900]) },
        Case { heads: [8, 1], ..plain(entry, &(0..40).map(|i| i * 7 % 90).collect::<Vec<_>>()) },
        // In the first case, the queries of one row block end at different keys. The second case has two
        // blocks of rows, and the last block is partial.
        Case { queries: 4, heads: [rows / 4, 1], ..plain(entry, &[2, 40, 64, 130]) },
        Case { queries: 3, heads: [rows / 2, 1], pages: Pages::Rows, ..plain(entry, &[96, 1, 33]) },
        Case { heads: [rows + 5, 1], pages: Pages::Nhd(64), ..plain(entry, &[200, 31]) },
        // The scale is six times DeepSeek's. The scores of at least one warp therefore outgrow the lazy
        // maximum. Then all warps must update their maxima and rescale O.
        Case { scale: Some(6.0 * DEEPSEEK), splits: Splits::Exactly(2), ..plain(entry, &[260, 96]) },
        // The first case has numbers of columns that no entry has. The second case has two latent heads. In
        // the third case, one plan runs on other lengths.
        Case { head_dim, head_dim_v: Some(head_dim_v), heads: [5, 1], ..plain(entry, &[70, 33]) },
        Case { heads: [6, 2], queries: 2, sinks: true, ..plain(entry, &[45, 100]) },
        Case { device_lengths, heads: [4, 1], pages: Pages::Nhd(5), ..plain(entry, &[120, 50, 50, 0, 33]) },
    ];
    // TMA copies boxes of at least 8 rows.
    let pages = |pages| match pages {
        Pages::Nhd(rows) if entry.has_maps() && rows % 8 > 0 => Pages::Nhd(8 * rows),
        _ => pages,
    };
    cases.into_iter().map(|case| Case { pages: pages(case.pages), ..case }).collect()
}

/// Returns one query with the entry's number of rows as its heads, whose list has `filled` keys.
fn list(entry: &AttnInfo, filled: &[usize]) -> Case {
    Case { listed: true, mask: Mask::Full, ..plain(entry, filled) }
}

/// Returns problems of lists that hit an entry's edges: as in [`edges`], with lists of any length, with pages
/// of every kind, and with entries that name no key among the others.
pub(super) fn listed(entry: &AttnInfo) -> Vec<Case> {
    let rows = entry.tile_m as usize;
    let edges = list(entry, &[0, 1, 15, 17, 31, 32, 33, 65, 128, 300]);
    let ([head_dim, head_dim_v], device_lengths) = (fewer_columns(entry), device_lengths::others());
    vec![
        Case { splits: Splits::Exactly(3), sinks: true, ..edges.clone() },
        Case { pages: Pages::Nhd(1), splits: Splits::Exactly(2), counters: false, ..edges.clone() },
        Case { pages: Pages::Nhd(3), splits: Splits::Keys(128), ..edges },
        Case { pages: Pages::Dense, max_k: 1024, ..list(entry, &[900]) },
        Case { heads: [8, 1], ..list(entry, &(0..40).map(|i| i * 7 % 90).collect::<Vec<_>>()) },
        // No entry of a list names a key.
        Case { max_k: 70, ..list(entry, &[0, 0]) },
        Case { heads: [rows + 5, 1], pages: Pages::Nhd(64), ..list(entry, &[200, 31]) },
        Case { scale: Some(6.0 * DEEPSEEK), splits: Splits::Exactly(2), ..list(entry, &[260, 96]) },
        Case { head_dim, head_dim_v: Some(head_dim_v), heads: [5, 1], ..list(entry, &[70, 33]) },
        Case { heads: [6, 2], sinks: true, ..list(entry, &[45, 100]) },
        Case { heads: [128, 1], max_k: 64, ..list(entry, &[64]) },
        Case {
            device_lengths,
            heads: [4, 1],
            pages: Pages::Nhd(5),
            max_k: 130,
            ..list(entry, &[120, 50, 50, 0, 33])
        },
    ]
}

/// Returns larger problems of lists, for a GPU: 64 queries of 128 heads, and one query of a long list.
pub(super) fn listed_long(entry: &AttnInfo) -> Vec<Case> {
    let device_lengths = vec![
        DeviceLengths::Filled,
        DeviceLengths::Fewer(1),
        DeviceLengths::Garbage(2),
        DeviceLengths::Fewer(3),
    ];
    let batch = Case { device_lengths, heads: [128, 1], pages: Pages::Nhd(64), ..list(entry, &[2048; 64]) };
    vec![batch, list(entry, &[4096])]
}

/// Returns larger problems, for a GPU: DeepSeek's 128 heads on 64 sequences in shuffled pages under one plan,
/// and one long sequence that the whole card shares with a few short sequences.
pub(super) fn long(entry: &AttnInfo) -> Vec<Case> {
    let lengths: Vec<_> = (0..64).map(|b: usize| b * 2_654_435_761 % 1500 + b % 2).collect();
    let device_lengths = vec![
        DeviceLengths::Filled,
        DeviceLengths::Fewer(1),
        DeviceLengths::Garbage(2),
        DeviceLengths::Fewer(3),
    ];
    let batch = Case { device_lengths, heads: [128, 1], pages: Pages::Nhd(64), ..plain(entry, &lengths) };
    let one = Case { queries: 2, heads: [16, 1], ..plain(entry, &[12_345, 5, 1000, 0, 64]) };
    let chunks = Case { splits: Splits::Keys(256), counters: false, ..batch.clone() };
    vec![batch, one, chunks]
}
