//! Converts the caller's views to kernel parameters in bytes. All views are valid.
use crate::layout::{FAR_HEADS, one_index};
use crate::request::{
    AlibiSlopes, Index, KeysValues, KvCache, KvPages, KvScale, LseView, Paged, Queries, TensorView,
    TokenScales, VarlenKeys,
};
use crate::{Error, validate};
use spec::{Cache, FastDiv, Integers, Lse, PerHead, Tensor};

/// A placeholder: no tensor.
pub(super) const NO_TENSOR: Tensor =
    Tensor { base: 0, batch_bytes: 0, head_bytes: 0, row_bytes: 0, rows: 0, chunks: 0, reserved: 0 };
/// A placeholder: no LSE, or no other vector.
pub(super) const NO_LSE: Lse = Lse { base: 0, batch_bytes: 0, head_bytes: 0 };

/// Converts a tensor. Kernels never use the stride of a dimension of extent 1, so such a stride becomes 0.
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

/// Returns a contiguous tensor of `rows` rows in a workspace: `blocks` distances of `row_bytes` for each of
/// `heads` heads of a batch.
pub(super) fn tensor_at(base: u64, [heads, blocks]: [u32; 2], row_bytes: u32, rows: u32) -> Tensor {
    let head_bytes = u64::from(blocks) * u64::from(row_bytes);
    let batch_bytes = u64::from(heads) * head_bytes;
    Tensor { base, batch_bytes, head_bytes, row_bytes, rows, chunks: row_bytes / 16, reserved: 0 }
}

/// Converts the LSE, if the request has one.
pub(super) fn lse(view: Option<&LseView>) -> Lse {
    view.map_or(NO_LSE, |view| {
        let [batch_bytes, head_bytes] = view.strides.map(|stride| (stride as u64).wrapping_mul(4));
        Lse { base: view.address, batch_bytes, head_bytes }
    })
}

/// Converts ALiBi slopes, if the request has any.
pub(super) fn slopes(view: Option<&AlibiSlopes>) -> PerHead {
    view.map_or(per_head(0, [0; 2]), |view| per_head(view.address, view.strides))
}

/// Converts one number per sequence and head in device memory; address 0 means that there is none.
pub(super) fn per_head(base: u64, strides: [i64; 2]) -> PerHead {
    // Kernels never use the stride of a dimension of extent 1.
    let [sequence_bytes, head_bytes] = strides.map(|stride| (stride as u64).wrapping_mul(4));
    PerHead { base, sequence_bytes, head_bytes, value: 0.0, reserved: 0 }
}

/// A placeholder: no scale.
pub(super) const UNSCALED: PerHead =
    PerHead { base: 0, sequence_bytes: 0, head_bytes: 0, value: 1.0, reserved: 0 };

/// Converts the scales of keys and of values. Values without a scale that are the keys themselves have the
/// keys' scale: a latent cache, all of whose columns are values.
pub(super) fn scales(pages: &KvPages) -> [PerHead; 2] {
    let KvPages { keys, values, scales: [of_keys, of_values] } = pages;
    let of_values = if keys == values && *of_values == KvScale::One { of_keys } else { of_values };
    [scale(of_keys), scale(of_values)]
}

/// Converts a scale.
pub(super) fn scale(scale: &KvScale) -> PerHead {
    match *scale {
        KvScale::One => UNSCALED,
        KvScale::Value(value) => PerHead { value, ..UNSCALED },
        KvScale::Device { address, strides, .. } => per_head(address, strides),
        KvScale::Tokens(TokenScales { address, strides, .. }) => per_head(address, strides),
    }
}

/// Converts pages. The result has no block table. Kernels address keys and values by the strides of keys.
pub(super) fn pages(pages: &KvPages) -> Cache {
    laid_out_as(&pages.keys, pages)
}

/// Converts pages with the strides and the number of columns of `view`, which is one of keys and values.
fn laid_out_as(view: &TensorView, pages: &KvPages) -> Cache {
    let [count, page, heads, head_dim] = view.shape;
    let bytes = view.dtype.bytes();
    let chunks = |dim: usize, extent: usize| {
        let bytes = (view.strides[dim] as u64).wrapping_mul(bytes as u64);
        // Kernels never use the stride of a dimension of extent 1. All other strides fit into 32 bits,
        // because the span of all chunks does.
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
        // Planning has checked that a page has at least 1 key, and less than 2^31.
        page: FastDiv::new(page as u32).unwrap_or(FastDiv::ONE),
        chunks: (head_dim * bytes / 16) as u32,
    }
}

/// Converts a KV cache. A dense KV cache has a block table of a single column.
pub(super) fn cache(cache: &KvCache) -> Cache {
    with_table(pages(&cache.pages), cache)
}

/// Converts a KV cache with the strides and the number of columns of values.
pub(super) fn cache_of_values(cache: &KvCache) -> Cache {
    with_table(laid_out_as(&cache.pages.values, &cache.pages), cache)
}

fn with_table(pages: Cache, cache: &KvCache) -> Cache {
    match cache.paged {
        Paged::Dense { rows: None } => pages,
        Paged::Dense { rows: Some(rows) } => Cache { table: rows.address, ..pages },
        Paged::Table { entries, columns, stride } => {
            Cache { table: entries.address, columns: columns as u32, table_stride: stride as u32, ..pages }
        }
    }
}

/// Converts K and V, `[batch, keys, heads, head_dim]`, to a dense KV cache.
///
/// # Errors
/// Returns the reason why decode kernels do not accept these tensors.
pub(super) fn dense_cache(k: &TensorView, v: &TensorView) -> Result<Cache, &'static str> {
    one_index(k, v)?;
    Ok(pages(&KvPages::new(*k, *v)))
}

/// Converts varlen K and V to a KV cache with one page per sequence. The sequences begin at `starts`.
///
/// # Errors
/// Returns the reason why decode kernels do not accept these tensors.
pub(super) fn varlen_cache(
    k: &TensorView,
    v: &TensorView,
    starts: &Integers,
    max_keys: usize,
) -> Result<Cache, &'static str> {
    one_index(k, v)?;
    let cache = spec::varlen_cache(&tensor(k), v.address, starts, max_keys as u32);
    cache.ok_or(FAR_HEADS)
}

/// Converts the first `count` integers of an index; without an index, the result is empty.
pub(super) fn integers(index: Option<Index>, count: usize) -> Integers {
    index.map_or(Integers { base: 0, count: 0, reserved: 0 }, |index| Integers {
        base: index.address,
        count: count as u32,
        reserved: 0,
    })
}

/// Converts the offsets of varlen queries; equal query counts have no offsets.
pub(super) fn cu_seqlens_q(queries: &Queries) -> Integers {
    match queries {
        Queries::Batched => integers(None, 0),
        Queries::Varlen(queries) => integers(Some(queries.cu_seqlens_q), queries.batch + 1),
    }
}

/// Converts the offsets of varlen keys, and the number of valid keys per sequence.
pub(super) fn varlen_keys(keys: &VarlenKeys, batch: usize) -> [Integers; 2] {
    [integers(Some(keys.cu_seqlens_k), batch + 1), integers(keys.seqused_k, batch)]
}

/// Converts K and V, if they are tensors.
pub(super) fn keys_values(kv: &KeysValues) -> [Tensor; 2] {
    kv.tensors().map_or([NO_TENSOR; 2], |views| views.map(tensor))
}

impl KvCache {
    /// Converts a KV cache of `batch` sequences and its scales to kernel parameters. The layout of the
    /// parameters may change with every version.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`], which names the invalid field, or [`Error::Unsupported`], which names the
    /// feature that kernels lack.
    #[doc(hidden)]
    pub fn params(&self, sequences: usize) -> Result<(Cache, [PerHead; 2]), Error> {
        validate::cache(self, sequences)?;
        Ok((cache(self), scales(&self.pages)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::request::TensorView;

    #[test]
    fn values_that_are_the_keys_have_their_scale() {
        let rows = |address| TensorView::bshd(address, 4 * 16 * 64, DType::E4m3, [4, 16, 1, 64]);
        let of = |pages: KvPages, values| {
            scales(&pages.scales(KvScale::Value(0.5), values)).map(|scale| scale.value)
        };
        assert_eq!(of(KvPages::latent(rows(1 << 40), 64), KvScale::One), [0.5; 2]);
        assert_eq!(of(KvPages::latent(rows(1 << 40), 64), KvScale::Value(2.0)), [0.5, 2.0]);
        assert_eq!(of(KvPages::new(rows(1 << 40), rows(2 << 40)), KvScale::One), [0.5, 1.0]);
    }
}
