//! What kernels are told of a cache, whichever family they are of.
use crate::{KvCache, KvPages, KvScale, Paged};
use spec::{Cache, FastDiv, PerHead};

/// Pages that have been checked, without a table.
pub(crate) fn pages(pages: &KvPages) -> Cache {
    let [count, page, heads, head_dim] = pages.keys.shape;
    let bytes = pages.keys.dtype.bytes();
    let chunks = |dim: usize, extent: usize| {
        let bytes = (pages.keys.strides[dim] as u64).wrapping_mul(bytes as u64);
        // Strides of extents of 1 are never taken; the others fit, as all chunks do.
        if extent == 1 { 0 } else { (bytes / 16) as u32 }
    };
    Cache {
        keys: pages.keys.address,
        values: pages.values.address,
        table: 0,
        page_chunks: chunks(0, count),
        row_chunks: chunks(1, page),
        head_chunks: chunks(2, heads),
        pages: count as u32,
        table_stride: 1,
        columns: 1,
        // A checked page has 1 key or more, and less than 2^31.
        page: FastDiv::new(page as u32).unwrap_or(FastDiv::ONE),
        chunks: (head_dim * bytes / 16) as u32,
    }
}

/// A cache that has been checked. That of a page for each sequence is one of a single column.
pub(crate) fn cache(cache: &KvCache) -> Cache {
    let pages = pages(&cache.pages);
    match cache.paged {
        Paged::Dense { rows: None } => pages,
        Paged::Dense { rows: Some(rows) } => Cache { table: rows.address, ..pages },
        Paged::Table { entries, columns, stride } => {
            Cache { table: entries.address, columns: columns as u32, table_stride: stride as u32, ..pages }
        }
    }
}

/// A scale that has been checked.
pub(crate) fn scale(scale: &KvScale) -> PerHead {
    let known = |value| PerHead { base: 0, sequence_bytes: 0, head_bytes: 0, value, reserved: 0 };
    match *scale {
        KvScale::One => known(1.0),
        KvScale::Value(value) => known(value),
        KvScale::Device { address, strides, .. } => per_head(address, strides),
    }
}

/// Numbers of heads on the device, of which the host knows none; address 0 for none at all.
pub(super) fn per_head(base: u64, strides: [i64; 2]) -> PerHead {
    // Strides of extents of 1 may be anything, and are never taken.
    let [sequence_bytes, head_bytes] = strides.map(|stride| (stride as u64).wrapping_mul(4));
    PerHead { base, sequence_bytes, head_bytes, value: 0.0, reserved: 0 }
}
