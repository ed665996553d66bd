//! Views of the caller's memory as kernels are told them, in bytes. All have been checked.
use crate::request::{
    AlibiSlopes, Index, KeysValues, KvCache, KvPages, KvScale, LseView, PageView, Paged, Queries, TensorView,
    VarlenKeys,
};
use crate::{Error, validate};
use spec::{Cache, FastDiv, Integers, Lse, PerHead, Tensor};

/// No tensor.
pub(super) const NO_TENSOR: Tensor =
    Tensor { base: 0, batch_bytes: 0, head_bytes: 0, row_bytes: 0, rows: 0, chunks: 0, reserved: 0 };
/// No log-sum-exp, and no other vectors.
pub(super) const NO_LSE: Lse = Lse { base: 0, batch_bytes: 0, head_bytes: 0 };

/// A tensor. Strides of extents of 1 are never taken; 0 stands for whatever the caller had there.
pub(super) fn tensor(view: &TensorView) -> Tensor {
    let bytes = |dim: usize| {
        if view.shape[dim] == 1 { 0 } else { (view.strides[dim] as u64).wrapping_mul(view.element_bytes()) }
    };
    Tensor {
        base: view.address,
        batch_bytes: bytes(0),
        head_bytes: bytes(2),
        row_bytes: bytes(1) as u32,
        rows: view.shape[1].min(u32::MAX as usize) as u32,
        chunks: (view.shape[3] * view.dtype.bytes() / 16) as u32,
        reserved: 0,
    }
}

/// The log-sum-exp, if it is asked for.
pub(super) fn lse(view: Option<&LseView>) -> Lse {
    view.map_or(NO_LSE, |view| {
        let [batch_bytes, head_bytes] = view.strides.map(|stride| (stride as u64).wrapping_mul(4));
        Lse { base: view.address, batch_bytes, head_bytes }
    })
}

/// Slopes, if there are some.
pub(super) fn slopes(view: Option<&AlibiSlopes>) -> PerHead {
    view.map_or(per_head(0, [0; 2]), |view| per_head(view.address, view.strides))
}

/// Numbers per sequence and head in device memory; address 0 for none at all.
fn per_head(base: u64, strides: [i64; 2]) -> PerHead {
    // Strides of extents of 1 may be anything, and are never taken.
    let [sequence_bytes, head_bytes] = strides.map(|stride| (stride as u64).wrapping_mul(4));
    PerHead { base, sequence_bytes, head_bytes, value: 0.0, reserved: 0 }
}

/// Numbers that stand for themselves.
pub(super) const UNSCALED: PerHead =
    PerHead { base: 0, sequence_bytes: 0, head_bytes: 0, value: 1.0, reserved: 0 };

/// What the numbers of keys, and of values, stand for.
pub(super) fn scales(pages: &KvPages) -> [PerHead; 2] {
    pages.scales.map(|scale| match scale {
        KvScale::One => UNSCALED,
        KvScale::Value(value) => PerHead { value, ..UNSCALED },
        KvScale::Device { address, strides, .. } => per_head(address, strides),
    })
}

/// Pages, without a table.
pub(super) fn pages(pages: &KvPages) -> Cache {
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

/// A cache. One with a page per sequence is one of a single column.
pub(super) fn cache(cache: &KvCache) -> Cache {
    let pages = pages(&cache.pages);
    match cache.paged {
        Paged::Dense { rows: None } => pages,
        Paged::Dense { rows: Some(rows) } => Cache { table: rows.address, ..pages },
        Paged::Table { entries, columns, stride } => {
            Cache { table: entries.address, columns: columns as u32, table_stride: stride as u32, ..pages }
        }
    }
}

/// Most chunks of 16 bytes that keys, and values, of a cache span.
const MAX_CHUNKS: u64 = 1 << 32;

/// K and V `[batch, keys, heads, head_dim]` as a cache with a page per batch.
///
/// # Errors
/// What decode kernels do not take.
pub(super) fn dense_cache(k: &TensorView, v: &TensorView) -> Result<Cache, &'static str> {
    if (0..3).any(|dim| k.shape[dim] > 1 && k.strides[dim] != v.strides[dim]) {
        return Err("k and v have different strides, and decode kernels find both by one index");
    }
    let steps = k.shape.iter().zip(&k.strides);
    let elements = steps.map(|(extent, stride)| (*extent as u64 - 1).saturating_mul(*stride as u64));
    let chunks = elements.fold(0, u64::saturating_add).saturating_mul(k.element_bytes()) / 16 + 1;
    if chunks > MAX_CHUNKS {
        return Err("k and v span more than 64 GiB each, and decode kernels count in 32 bits");
    }
    let view = |t: &TensorView| PageView::new(t.address, t.elements, t.dtype, t.shape, t.strides);
    Ok(pages(&KvPages::new(view(k), view(v))))
}

/// The first `count` integers of an index; none without one.
pub(super) fn integers(index: Option<Index>, count: usize) -> Integers {
    index.map_or(Integers { base: 0, count: 0, reserved: 0 }, |index| Integers {
        base: index.address,
        count: count as u32,
        reserved: 0,
    })
}

/// Where varlen queries begin; none where there are as many for each sequence.
pub(super) fn cu_seqlens_q(queries: &Queries) -> Integers {
    match queries {
        Queries::Batched => integers(None, 0),
        Queries::Varlen(queries) => integers(Some(queries.cu_seqlens_q), queries.batch + 1),
    }
}

/// Where the keys of so many varlen sequences begin, and how many each has used.
pub(super) fn varlen_keys(keys: &VarlenKeys, batch: usize) -> [Integers; 2] {
    [integers(Some(keys.cu_seqlens_k), batch + 1), integers(keys.seqused_k, batch)]
}

/// K and V, where these are tensors.
pub(super) fn keys_values(kv: &KeysValues) -> [Tensor; 2] {
    kv.tensors().map_or([NO_TENSOR; 2], |views| views.map(tensor))
}

impl KvCache {
    /// What kernels are told of it, and of its scales, for so many sequences. The layout may change with every
    /// version.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the value that is wrong, [`Error::Unsupported`] the feature that kernels have
    /// not.
    #[doc(hidden)]
    pub fn params(&self, sequences: usize) -> Result<(Cache, [PerHead; 2]), Error> {
        validate::cache(self, sequences)?;
        Ok((cache(self), scales(&self.pages)))
    }
}
