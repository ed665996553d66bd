//! The problems that each decode entry must solve.
use super::{DecodeCase, Pages};
use ferroflash::spec::{DecodeInfo, MaskKind, PageKind};
use ferroflash::{DType, Mask, Splits};

/// Problems that hit an entry's edges: no key, ragged tails, one long sequence, every layout, every way of
/// cutting and merging, missing rows and columns, queries and windows.
pub fn decode_edges(entry: &DecodeInfo) -> Vec<DecodeCase> {
    let plain = |filled: &[usize]| DecodeCase {
        dtype: entry.dtype,
        cache: entry.cache,
        head_dim: entry.head_dim as usize,
        heads: [entry.rows as usize, 2],
        ..DecodeCase::new(filled)
    };
    let rows = entry.rows as usize;
    let full = DecodeCase { heads: [2 * rows, 2], ..plain(&[0, 1, 15, 16, 17, 700, 33]) };
    let tiled = [Pages::Dense, Pages::Nhd(16), Pages::Hnd(48), Pages::Interleaved(64), Pages::Rows];
    let any = [Pages::Nhd(1), Pages::Hnd(3), Pages::Interleaved(16), Pages::Dense, Pages::Nhd(7)];
    let mut cases = vec![];
    for (i, pages) in (if entry.pages == PageKind::Tiles { tiled } else { any }).into_iter().enumerate() {
        let splits = [Splits::Auto, Splits::Exactly(3), Splits::Chunk(128)][i % 3];
        cases.push(DecodeCase { pages, splits, counters: i % 2 == 0, sinks: i == 1, ..full.clone() });
    }
    // One long sequence over all SMs; several queries; a head dim that is no entry's; rows that are missing.
    cases.push(plain(&[1500]));
    let causal = DecodeCase { queries: rows / 2, heads: [4, 2], mask: Mask::Causal, ..plain(&[2, 40, 300]) };
    cases.push(causal);
    let missing = if entry.cache == DType::E4m3 { 16 } else { 24 };
    cases.push(DecodeCase {
        head_dim: entry.head_dim as usize - missing,
        heads: [6, 2],
        ..plain(&[130, 77])
    });
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
    cases
}
