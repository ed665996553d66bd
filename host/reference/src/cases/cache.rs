//! The test problems of decode and prefill kernels on KV caches.
use crate::case::{Case, Pages};
use crate::device_lengths::{self, DeviceLengths};
use crate::masks::at_edges;
use ferroflash::DType;
use ferroflash::request::{Mask, Splits};
use ferroflash::spec::{AttnInfo, Keys, MaskKind, PageKind};

/// Gives cases the scores and, in turn, the masks of an entry.
fn of(entry: &AttnInfo, cases: Vec<Case>) -> Vec<Case> {
    let is_plain = matches!(entry.mask, MaskKind::Full | MaskKind::Causal | MaskKind::Local);
    let masks = at_edges(entry.mask, [entry.tile_m, entry.tile_n].map(|tile| tile as usize));
    let own = cases.into_iter().zip(masks.iter().cycle());
    let own = own.map(|(case, (mask, _))| Case { mask: if is_plain { case.mask } else { *mask }, ..case });
    super::of(entry, own.collect())
}

/// Returns a head dim below the entry's, with whole chunks in its KV cache.
pub(super) fn less(entry: &AttnInfo) -> usize {
    entry.head_dim as usize - if entry.kv_dtype.bytes() == 1 { 16 } else { 24 }
}

/// Returns problems that hit a decode entry's edges: no key, partial tiles, one long sequence, every layout,
/// every kind of split and combine, missing rows and columns, several queries, windows.
pub(super) fn decode_edges(entry: &AttnInfo) -> Vec<Case> {
    let plain = |filled: &[usize]| Case { heads: [entry.tile_m as usize, 2], ..Case::on(entry, filled) };
    let rows = entry.tile_m as usize;
    let full = Case { heads: [2 * rows, 2], ..plain(&[0, 1, 15, 16, 17, 700, 33]) };
    let tiled = [Pages::Dense, Pages::Nhd(16), Pages::Hnd(48), Pages::Interleaved(64), Pages::Rows];
    let any = [Pages::Nhd(1), Pages::Hnd(3), Pages::Interleaved(16), Pages::Dense, Pages::Nhd(7)];
    let mut cases = vec![];
    for (i, pages) in
        (if entry.keys == Keys::Cache(PageKind::Tiles) { tiled } else { any }).into_iter().enumerate()
    {
        let splits = [Splits::Auto, Splits::Exactly(3), Splits::Keys(128)][i % 3];
        cases.push(Case { pages, splits, counters: i % 2 == 0, sinks: i == 1, ..full.clone() });
    }
    // One long sequence, whose keys all SMs share.
    cases.push(plain(&[1500]));
    // Scores so far apart that a merge overflows if it forgets the largest LSE of 16 splits.
    let apart = Case { heads: [2 * rows, 2], scale: Some(20.0), ..plain(&[512, 400]) };
    cases.push(Case { splits: Splits::Exactly(16), ..apart });
    // Several queries per sequence, and a sequence with fewer keys than queries.
    let causal = Case { queries: rows / 2, heads: [4, 2], mask: Mask::Causal, ..plain(&[2, 40, 300]) };
    cases.push(causal);
    // More rows than one block takes, so several blocks share the rows.
    cases.push(Case {
        queries: (rows + 1).min(21),
        heads: [6, 2],
        mask: Mask::Causal,
        ..plain(&[0, 5, 300])
    });
    // A head dim between the head dims of two kernels, and fewer rows than one block takes.
    cases.push(Case { head_dim: less(entry), heads: [6, 2], ..plain(&[130, 77]) });
    // The same plan runs on other lengths, and some of them are invalid.
    let device_lengths = device_lengths::others();
    let pages = if entry.keys == Keys::Cache(PageKind::Tiles) { Pages::Nhd(16) } else { Pages::Hnd(5) };
    cases.push(Case { pages, device_lengths, heads: [2, 1], ..plain(&[120, 50, 50, 120, 0, 33]) });
    if entry.kv_dtype == DType::Int8 {
        // With one key, the result is the value, rounded once.
        cases.push(Case { heads: [4, 2], ..plain(&[1; 20]) });
        cases.push(Case { heads: [4, 2], queries: 2, ..plain(&[2, 3, 2, 3, 4, 5, 9, 2]) });
        if entry.mask == MaskKind::Local {
            let mask = Mask::Window { left: Some(7), right: Some(0) };
            let hidden = Case { mask, poisoned_scales: true, ..plain(&[9, 15, 16, 21, 300, 43]) };
            cases.push(Case { queries: 2, heads: [4, 2], pages: Pages::Nhd(7), ..hidden.clone() });
            cases.push(hidden);
        }
    }
    if entry.mask == MaskKind::Local {
        let window = |left, right| Mask::Window { left, right };
        for (mask, softcap) in [
            (window(Some(20), Some(0)), None),
            (window(Some(100), Some(1)), Some(30.0)),
            (window(None, Some(0)), Some(5.0)),
            (window(Some(0), None), None),
        ] {
            cases.push(Case { queries: 4, heads: [4, 2], mask, softcap, ..plain(&[3, 18, 400]) });
        }
    }
    of(entry, cases)
}

/// Returns fewer columns than an entry's values have, if values have their own number of columns.
fn fewer(entry: &AttnInfo) -> Option<usize> {
    entry.has_own_values().then_some(entry.head_dim_v as usize - 48)
}

/// Returns problems that hit a paged prefill entry's edges: decoding sequences beside whole prompts and
/// chunks of prompts, sequences without queries or keys, fewer keys than queries. A portable entry gets pages
/// of any size, a Hopper entry pages that TMA accepts.
pub fn paged_edges(entry: &AttnInfo) -> Vec<Case> {
    let [m, n] = [entry.tile_m, entry.tile_n].map(|tile| tile as usize);
    let case = |filled: &[usize], heads| Case { heads, ..Case::on(entry, filled) };
    let device_lengths = vec![
        DeviceLengths::Filled,
        DeviceLengths::Fewer(1),
        DeviceLengths::Garbage(2),
        DeviceLengths::Garbage(3),
        DeviceLengths::Filled,
    ];
    let mixed =
        |heads| case(&[2 * n + 1, m + 3, 0, 5, n, 0, 3 * n], heads).varlen_queries([1, m + 3, 2, 0, 9, 0, 5]);
    let masks: [_; 4] = match entry.mask {
        MaskKind::Local => [
            (Mask::Window { left: Some(20), right: Some(0) }, None),
            (Mask::Causal, Some(30.0)),
            (Mask::Full, Some(5.0)),
            (Mask::Window { left: None, right: Some(7) }, None),
        ],
        _ => [Mask::Causal, Mask::Full, Mask::Causal, Mask::Causal].map(|mask| (mask, None)),
    };
    let [hnd, interleaved] = if entry.has_maps() { [48, 8] } else { [3, 1] };
    let cases = [
        Case { pages: Pages::Nhd(16), ..mixed([2, 1]) },
        Case { pages: Pages::Hnd(hnd), head_dim: less(entry), head_dim_v: fewer(entry), ..mixed([1, 1]) },
        Case {
            pages: Pages::Interleaved(interleaved),
            device_lengths,
            ..case(&[n + 1, 7], [2, 2]).varlen_queries([2, 7])
        },
        // This case has equal numbers of queries per sequence, and no block table.
        Case { pages: Pages::Rows, queries: 17, ..case(&[n + 17, 0, 4], [2, 1]) },
    ];
    let cases = cases.into_iter().zip(masks);
    let cases = cases.map(|(case, (mask, softcap))| Case { mask, softcap, ..case });
    let slopes = [
        Case { mask: Mask::Causal, pages: Pages::Nhd(7), alibi: true, ..mixed([2, 1]) },
        Case { pages: Pages::Rows, alibi: true, ..case(&[n + 1, 0, 4], [2, 2]) },
    ];
    let sloped = entry.mask == MaskKind::Local && entry.head_dim <= 256 && !entry.has_maps();
    // Every work tile has exactly `m` queries, and is the first or the second tile of its block. In the
    // first sequence, the causal diagonal begins in the middle of a stage of keys. In the others, it begins
    // at the start of a stage.
    let whole = Case { mask: Mask::Causal, pages: Pages::Nhd(32), ..case(&[m + n / 2, m, m], [2, 1]) };
    let whole = entry.has_maps().then(|| whole.varlen_queries([m; 3]));
    // This case has persistent blocks. On a card with few SMs, each block takes several tiles. A block uses
    // the buffers of Q and O again for its next tile.
    let many = Case { mask: Mask::Causal, pages: Pages::Hnd(8), queries: 20, ..case(&[n + 20], [13, 1]) };
    let many = entry.has_maps().then_some(many);
    of(entry, cases.chain(slopes.into_iter().filter(|_| sloped)).chain(whole).chain(many).collect())
}

/// Returns lengths of `count` sequences with up to `most` keys each. Some sequences have no key.
fn ragged(count: usize, most: usize) -> Vec<usize> {
    (0..count).map(|b| if b % 11 == 5 { 0 } else { (b * 2_654_435_761) % most + b % 2 }).collect()
}

/// Returns larger problems of a decode entry, for a GPU: 64 sequences in shuffled pages; launches of one plan
/// with other lengths and with invalid lengths; one long sequence that the whole GPU shares with a few short
/// sequences.
pub(super) fn decode_long(entry: &AttnInfo) -> Vec<Case> {
    let plain = |filled: Vec<usize>| Case {
        heads: [8, 1],
        mask: match entry.mask {
            MaskKind::Local => Mask::Window { left: Some(500), right: Some(0) },
            _ => Mask::Full,
        },
        device_lengths: vec![
            DeviceLengths::Filled,
            DeviceLengths::Fewer(1),
            DeviceLengths::Garbage(2),
            DeviceLengths::Fewer(3),
        ],
        ..Case::on(entry, filled)
    };
    let batch = Case { pages: Pages::Nhd(16), sinks: true, ..plain(ragged(64, 1500)) };
    let one = Case { pages: Pages::Interleaved(64), ..plain(vec![12_345, 5, 1000, 0, 64]) };
    let chunks = Case { splits: Splits::Keys(256), counters: false, sinks: false, ..batch.clone() };
    of(entry, vec![batch, one, chunks])
}

/// Returns larger problems of a paged entry, for a GPU: 64 sequences, some of which decode, while others are
/// whole prompts or chunks of prompts.
pub(super) fn paged_long(entry: &AttnInfo) -> Vec<Case> {
    let filled = ragged(64, 700);
    let queries = filled.iter().enumerate().map(|(b, keys)| match b % 4 {
        0 => 1,
        1 => *keys,
        2 => keys / 3,
        _ => b % 7,
    });
    let queries: Vec<_> = queries.collect();
    let mask = match entry.mask {
        MaskKind::Local => Mask::Window { left: Some(100), right: Some(0) },
        _ => Mask::Causal,
    };
    let plain = Case {
        heads: [2, 1],
        mask,
        pages: Pages::Nhd(16),
        device_lengths: device_lengths::others(),
        ..Case::on(entry, filled)
    };
    let long = Case { queries: 600, pages: Pages::Hnd(32), ..plain.clone() };
    let device_lengths = vec![DeviceLengths::Filled, DeviceLengths::Fewer(1), DeviceLengths::Garbage(2)];
    let long = Case { filled: vec![4000, 700, 0], seeds: vec![1, 2, 3], max_k: 4000, device_lengths, ..long };
    of(entry, vec![plain.varlen_queries(queries), long])
}
