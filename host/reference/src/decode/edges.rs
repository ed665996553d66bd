//! Problems that every entry for KV caches must solve.
use super::{DecodeCase, Pages};
use crate::masks::at_edges;
use crate::told::Told;
use ferroflash::DType;
use ferroflash::request::{Mask, Splits};
use ferroflash::spec::{AttnInfo, Keys, MaskKind, PageKind};

/// Gives cases the masks and scores of an entry. Drops each case in which a simpler mask shows the same keys,
/// because the kernels of masks with parameters do not solve such a case.
fn of(entry: &AttnInfo, cases: Vec<DecodeCase>) -> Vec<DecodeCase> {
    let is_plain = matches!(entry.mask, MaskKind::Full | MaskKind::Causal | MaskKind::Local);
    let masks = at_edges(entry.mask, [entry.tile_m, entry.tile_n].map(|tile| tile as usize));
    let own = cases.into_iter().enumerate().map(|(i, case)| {
        let mask = if is_plain { case.mask } else { masks[i % masks.len()].0 };
        DecodeCase { mask, ..case }.of(entry)
    });
    own.filter(|case| is_plain || case.whole().mask_kind() == entry.mask).collect()
}

/// Returns a head dim below the entry's, with whole chunks in its KV cache.
fn less(entry: &AttnInfo) -> usize {
    entry.head_dim as usize - if entry.kv_dtype.bytes() == 1 { 16 } else { 24 }
}

/// Returns problems that hit a decode entry's edges: no key, partial tiles, one long sequence, every layout,
/// every kind of split and combine, missing rows and columns, several queries, windows.
pub fn decode_edges(entry: &AttnInfo) -> Vec<DecodeCase> {
    let plain = |filled: &[usize]| DecodeCase {
        dtype: entry.dtype,
        cache: entry.kv_dtype,
        head_dim: entry.head_dim as usize,
        heads: [entry.tile_m as usize, 2],
        ..DecodeCase::new(filled)
    };
    let rows = entry.tile_m as usize;
    let full = DecodeCase { heads: [2 * rows, 2], ..plain(&[0, 1, 15, 16, 17, 700, 33]) };
    let tiled = [Pages::Dense, Pages::Nhd(16), Pages::Hnd(48), Pages::Interleaved(64), Pages::Rows];
    let any = [Pages::Nhd(1), Pages::Hnd(3), Pages::Interleaved(16), Pages::Dense, Pages::Nhd(7)];
    let mut cases = vec![];
    for (i, pages) in
        (if entry.keys == Keys::Cache(PageKind::Tiles) { tiled } else { any }).into_iter().enumerate()
    {
        let splits = [Splits::Auto, Splits::Exactly(3), Splits::Chunk(128)][i % 3];
        cases.push(DecodeCase { pages, splits, counters: i % 2 == 0, sinks: i == 1, ..full.clone() });
    }
    // One long sequence, whose keys all SMs share.
    cases.push(plain(&[1500]));
    // Scores so far apart that a merge overflows if it forgets the largest LSE of 16 splits.
    let apart = DecodeCase { heads: [2 * rows, 2], scale: Some(20.0), ..plain(&[512, 400]) };
    cases.push(DecodeCase { splits: Splits::Exactly(16), ..apart });
    // Several queries per sequence, and a sequence with fewer keys than queries.
    let causal = DecodeCase { queries: rows / 2, heads: [4, 2], mask: Mask::Causal, ..plain(&[2, 40, 300]) };
    cases.push(causal);
    // More rows than one block takes, so several blocks share the rows.
    cases.push(DecodeCase {
        queries: (rows + 1).min(21),
        heads: [6, 2],
        mask: Mask::Causal,
        ..plain(&[0, 5, 300])
    });
    // A head dim between the head dims of two kernels, and fewer rows than one block takes.
    cases.push(DecodeCase { head_dim: less(entry), heads: [6, 2], ..plain(&[130, 77]) });
    // The same plan runs on other lengths, and some of them are invalid.
    let told = vec![Told::Filled, Told::Fewer(1), Told::Garbage(2), Told::Filled];
    let pages = if entry.keys == Keys::Cache(PageKind::Tiles) { Pages::Nhd(16) } else { Pages::Hnd(5) };
    cases.push(DecodeCase { pages, told, heads: [2, 1], ..plain(&[120, 50, 50, 120, 0, 33]) });
    if entry.kv_dtype == DType::Int8 {
        // With one key, the result is the value, rounded once.
        cases.push(DecodeCase { heads: [4, 2], ..plain(&[1; 20]) });
        cases.push(DecodeCase { heads: [4, 2], queries: 2, ..plain(&[2, 3, 2, 3, 4, 5, 9, 2]) });
        if entry.mask == MaskKind::Local {
            let mask = Mask::Window { left: Some(7), right: Some(0) };
            let hidden = DecodeCase { mask, poisoned_scales: true, ..plain(&[9, 15, 16, 21, 300, 43]) };
            cases.push(DecodeCase { queries: 2, heads: [4, 2], pages: Pages::Nhd(7), ..hidden.clone() });
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
            cases.push(DecodeCase { queries: 4, heads: [4, 2], mask, softcap, ..plain(&[3, 18, 400]) });
        }
    }
    of(entry, cases)
}

/// Returns the number of columns of an entry's values, if its keys have another number of columns.
fn apart(entry: &AttnInfo) -> Option<usize> {
    (entry.head_dim != entry.head_dim_v).then_some(entry.head_dim_v as usize)
}

/// Returns fewer columns than an entry's values have, if values have their own number of columns.
fn fewer(entry: &AttnInfo) -> Option<usize> {
    entry.has_own_values().then_some(entry.head_dim_v as usize - 48)
}

/// Returns problems that hit a paged prefill entry's edges: decoding sequences beside whole prompts and
/// chunks of prompts, sequences without queries or keys, fewer keys than queries. A portable entry gets pages
/// of any size, a Hopper entry pages that TMA accepts.
pub fn paged_edges(entry: &AttnInfo) -> Vec<DecodeCase> {
    let [m, n] = [entry.tile_m, entry.tile_n].map(|tile| tile as usize);
    let case = |filled: &[usize], heads| DecodeCase {
        dtype: entry.dtype,
        cache: entry.kv_dtype,
        head_dim: entry.head_dim as usize,
        head_dim_v: apart(entry),
        heads,
        ..DecodeCase::new(filled)
    };
    let told = vec![Told::Filled, Told::Fewer(1), Told::Garbage(2), Told::Garbage(3), Told::Filled];
    let mixed = |heads| case(&[2 * n + 1, m + 3, 0, 5, n, 0, 3 * n], heads).packed([1, m + 3, 2, 0, 9, 0, 5]);
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
        DecodeCase { pages: Pages::Nhd(16), ..mixed([2, 1]) },
        DecodeCase {
            pages: Pages::Hnd(hnd),
            head_dim: less(entry),
            head_dim_v: fewer(entry),
            ..mixed([1, 1])
        },
        DecodeCase {
            pages: Pages::Interleaved(interleaved),
            told,
            ..case(&[n + 1, 7], [2, 2]).packed([2, 7])
        },
        // This case has equal numbers of queries per sequence, and no block table.
        DecodeCase { pages: Pages::Rows, queries: 17, ..case(&[n + 17, 0, 4], [2, 1]) },
    ];
    let cases = cases.into_iter().zip(masks);
    let cases = cases.map(|(case, (mask, softcap))| DecodeCase { mask, softcap, ..case });
    let slopes = [
        DecodeCase { mask: Mask::Causal, pages: Pages::Nhd(7), alibi: true, ..mixed([2, 1]) },
        DecodeCase { pages: Pages::Rows, alibi: true, ..case(&[n + 1, 0, 4], [2, 2]) },
    ];
    let sloped = entry.mask == MaskKind::Local && entry.head_dim <= 256 && !entry.has_maps();
    // Every work tile has exactly `m` queries, and is the first or the second tile of its block. In the
    // first sequence, the causal diagonal begins in the middle of a stage of keys. In the others, it begins
    // at the start of a stage.
    let whole = DecodeCase { mask: Mask::Causal, pages: Pages::Nhd(32), ..case(&[m + n / 2, m, m], [2, 1]) };
    let whole = entry.has_maps().then(|| whole.packed([m; 3]));
    // This case has persistent blocks. On a card with few SMs, each block takes several tiles. A block uses
    // the buffers of Q and O again for its next tile.
    let many =
        DecodeCase { mask: Mask::Causal, pages: Pages::Hnd(8), queries: 20, ..case(&[n + 20], [13, 1]) };
    let many = entry.has_maps().then_some(many);
    of(entry, cases.chain(slopes.into_iter().filter(|_| sloped)).chain(whole).chain(many).collect())
}

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
pub fn mixed_edges(entry: &AttnInfo) -> Vec<DecodeCase> {
    let [m, n] = [128, 64];
    let case = |filled: &[usize], heads| DecodeCase {
        dtype: entry.dtype,
        cache: entry.kv_dtype,
        head_dim: entry.head_dim as usize,
        heads,
        mask: Mask::Causal,
        ..DecodeCase::new(filled)
    };
    // There are four query heads per key head, so decode takes up to four queries.
    let keys = [2 * n + 1, m + 3, 0, 5, 300, 0, 40, 64, 3];
    let mixed = case(&keys, [8, 2]).packed([1, m + 3, 2, 0, 4, 7, 5, 3, 4]);
    // Nobody reads the scales of a sequence without queries.
    let unread = DecodeCase { poisoned_scales: entry.kv_dtype == DType::Int8, ..mixed.clone() };
    let told = vec![Told::Filled, Told::Fewer(1), Told::Garbage(2), Told::Garbage(3), Told::Filled];
    let many: Vec<_> = (0..40).map(|b| if b == 20 { 400 } else { 7 * b % 45 }).collect();
    let queries: Vec<_> = (0..40).map(|b| [1, 3, 1, 0, 1, 2, 17][b % 7]).collect();
    let rows = entry.tile_m as usize;
    vec![
        DecodeCase { pages: Pages::Nhd(16), splits: Splits::Chunk(128), ..unread },
        DecodeCase { pages: Pages::Hnd(3), splits: Splits::Chunk(128), counters: false, ..mixed.clone() },
        DecodeCase { pages: Pages::Rows, mask: Mask::Full, ..mixed.clone() },
        DecodeCase { head_dim: less(entry), pages: Pages::Interleaved(1), told, ..mixed },
        // In the first case, one query fills the rows of a decode block, so a sequence of two queries runs on
        // the prefill kernel. In the second case, all SMs share one sequence.
        DecodeCase { heads: [rows, 1], ..case(&[1500, 2, 9], [1, 1]).packed([1, 2, 9]) },
        DecodeCase { counters: false, pages: Pages::Nhd(7), ..case(&many, [2, 1]).packed(queries) },
        // In the first case, every sequence has few queries. In the second case, every sequence has many
        // queries.
        case(&[90, 0, 33], [3, 1]).packed([5, 1, 2]),
        DecodeCase { pages: Pages::Nhd(32), ..case(&[90, 40], [16, 2]).packed([40, 3]) },
    ]
}

/// Returns a batch for the kernels of mixed batches with invalid `cu_seqlens_q`.
pub fn mixed_astray(entry: &AttnInfo) -> DecodeCase {
    let told = vec![Told::Filled, Told::Lost(1), Told::Lost(2), Told::Lost(3), Told::Filled];
    DecodeCase { told, ..mixed_edges(entry).swap_remove(0) }
}

/// Returns larger mixed batches, for a GPU.
pub fn mixed_long(entry: &AttnInfo) -> Vec<DecodeCase> {
    let packed = paged_long(entry).swap_remove(0);
    let heads = [[8, 2], [16, 1], [2, 2]];
    heads.map(|heads| DecodeCase { heads, ..packed.clone() }).into()
}

/// Returns a batch for a paged entry with invalid `cu_seqlens_q`.
pub fn paged_astray(entry: &AttnInfo) -> DecodeCase {
    let told = vec![Told::Filled, Told::Lost(1), Told::Lost(2), Told::Lost(3), Told::Filled];
    DecodeCase { told, ..paged_edges(entry).swap_remove(0) }
}

/// Returns lengths of `count` sequences with up to `most` keys each. Some sequences have no key.
fn ragged(count: usize, most: usize) -> Vec<usize> {
    (0..count).map(|b| if b % 11 == 5 { 0 } else { (b * 2_654_435_761) % most + b % 2 }).collect()
}

/// Returns larger problems of a decode entry, for a GPU: 64 sequences in shuffled pages; launches of one plan
/// with other lengths and with invalid lengths; one long sequence that the whole GPU shares with a few short
/// sequences.
pub fn decode_long(entry: &AttnInfo) -> Vec<DecodeCase> {
    let plain = |filled: Vec<usize>| DecodeCase {
        dtype: entry.dtype,
        cache: entry.kv_dtype,
        head_dim: entry.head_dim as usize,
        heads: [8, 1],
        mask: match entry.mask {
            MaskKind::Local => Mask::Window { left: Some(500), right: Some(0) },
            _ => Mask::Full,
        },
        told: vec![Told::Filled, Told::Fewer(1), Told::Garbage(2), Told::Fewer(3)],
        ..DecodeCase::new(filled)
    };
    let batch = DecodeCase { pages: Pages::Nhd(16), sinks: true, ..plain(ragged(64, 1500)) };
    let one = DecodeCase { pages: Pages::Interleaved(64), ..plain(vec![12_345, 5, 1000, 0, 64]) };
    let chunks = DecodeCase { splits: Splits::Chunk(256), counters: false, sinks: false, ..batch.clone() };
    of(entry, vec![batch, one, chunks])
}

/// Returns larger problems of a paged entry, for a GPU: 64 sequences, some of which decode, while others are
/// whole prompts or chunks of prompts.
pub fn paged_long(entry: &AttnInfo) -> Vec<DecodeCase> {
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
    let plain = DecodeCase {
        dtype: entry.dtype,
        cache: entry.kv_dtype,
        head_dim: entry.head_dim as usize,
        head_dim_v: apart(entry),
        heads: [2, 1],
        mask,
        pages: Pages::Nhd(16),
        told: vec![Told::Filled, Told::Fewer(1), Told::Garbage(2), Told::Filled],
        ..DecodeCase::new(filled)
    };
    let long = DecodeCase { queries: 600, pages: Pages::Hnd(32), ..plain.clone() };
    let told = vec![Told::Filled, Told::Fewer(1), Told::Garbage(2)];
    let long = DecodeCase { filled: vec![4000, 700, 0], seeds: vec![1, 2, 3], max_k: 4000, told, ..long };
    of(entry, vec![plain.packed(queries), long])
}
