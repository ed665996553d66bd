//! The KV cache of `ferroflash_attention_t`.
use crate::args::{dtype, extent, kv_scale, present, reach};
use crate::call::invalid;
use crate::structs::AttentionArgs;
use ferroflash::request::{Index, KvCache, KvPages, TensorView};
use ferroflash::{DType, Error};

impl AttentionArgs {
    /// Checks that the fields of a KV cache are off, because other fields say that there is none. `remedy`
    /// names these.
    pub(super) fn lacks_cache(&self, remedy: &str) -> Result<(), Error> {
        let pages = (self.pages != 0).then(|| ("pages", self.pages.to_string()));
        let indices = [("block_table", self.block_table), ("cache_batch_idx", self.cache_batch_idx)];
        let scales = [("k_scales", self.k_scales), ("v_scales", self.v_scales)];
        let pointers = indices.map(|(name, at)| (name, at.cast())).into_iter().chain(scales);
        let pointers = pointers.filter(|(_, at)| !at.is_null()).map(|(name, at)| (name, format!("{at:p}")));
        let expected = format!("only a KV cache has it: {remedy}, or leave it out");
        let given = pages.into_iter().chain(pointers).next();
        given.map_or(Ok(()), |(name, value)| Err(invalid(name, value, expected)))?;
        let values = [("k_scale", self.k_scale), ("v_scale", self.v_scale)];
        let given = values.into_iter().find(|(_, value)| ![0.0, 1.0].contains(value));
        let expected = "only a KV cache of eight bits has it; leave it 0";
        given.map_or(Ok(()), |(name, value)| Err(invalid(name, value, expected)))
    }

    /// Returns the pages of a cache. `views` returns keys and values.
    pub(super) fn pages(
        &self,
        batch: usize,
        views: impl Fn([usize; 2], DType) -> [TensorView; 2],
    ) -> Result<KvPages, Error> {
        let [heads, head_dim] = [extent("heads_k", self.heads_k)?, extent("head_dim", self.head_dim)?];
        let pages = [extent("pages", self.pages)?, extent("page", self.page)?];
        let cache_dtype = dtype("cache_dtype", self.cache_dtype)?;
        let [k, v] = views(pages, cache_dtype);
        let extents = [[pages[0].saturating_mul(pages[1]), heads], [batch, heads]];
        let [k_scale, v_scale] = [(self.k_scale, self.k_scales), (self.v_scale, self.v_scales)]
            .map(|given| kv_scale(cache_dtype, given, self.scales_strides, extents));
        let pages = self.latent(head_dim)?.map_or(KvPages::new(k, v), |columns| KvPages::latent(k, columns));
        Ok(pages.scales(k_scale, v_scale))
    }

    /// Returns a cache of `batch` sequences.
    pub(super) fn cache(&self, batch: usize, pages: KvPages, lengths: Index) -> Result<KvCache, Error> {
        let rows = crate::args::cache_rows(self.cache_batch_idx, self.block_table)?;
        let mut cache = match (present(self.block_table), rows) {
            (Some(address), _) => {
                let columns = extent("columns", self.columns)?;
                let entries = Index::new(address, reach(&[batch, columns], &[self.table_stride, 1]));
                let stride = extent("table_stride", self.table_stride)?;
                KvCache::paged(pages, entries, columns, lengths).table_stride(stride)
            }
            (None, Some(rows)) => KvCache::dense(pages, lengths).rows(Index::new(rows, batch as u64)),
            (None, None) => KvCache::dense(pages, lengths),
        };
        if self.seqlen_k != 0 {
            cache.max_k = extent("seqlen_k", self.seqlen_k)?;
        }
        cache.total_k = (self.total_k != 0).then(|| extent("total_k", self.total_k)).transpose()?;
        Ok(cache)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{at, cache, check_refusals, tensors, varlen};

    /// Without lengths, or with offsets, keys and values are tensors, which would hide the fields of a cache.
    #[test]
    fn fields_of_a_cache_without_a_cache() {
        let lengths = |args| AttentionArgs { seqused_k: at(7), ..args };
        check_refusals(&[
            (AttentionArgs { block_table: at(8), ..tensors() }, "block_table: 0x80000000000"),
            (AttentionArgs { cache_batch_idx: at(8), ..tensors() }, "cache_batch_idx: 0x80000000000"),
            (AttentionArgs { pages: 9, ..tensors() }, "set seqused_k"),
            (AttentionArgs { k_scale: 0.5, ..tensors() }, "k_scale: 0.5"),
            (AttentionArgs { v_scales: at(8), ..tensors() }, "v_scales: 0x80000000000"),
            (AttentionArgs { block_table: at(8), ..varlen() }, "leave cu_seqlens_k NULL"),
            (AttentionArgs { cache_batch_idx: at(8), ..lengths(varlen()) }, "cache_batch_idx: 0x80000000000"),
            (AttentionArgs { pages: 9, ..lengths(varlen()) }, "pages: 9"),
            (AttentionArgs { v_scale: 2.0, ..varlen() }, "v_scale: 2"),
            (AttentionArgs { cu_seqlens_q: at(7), cu_seqlens_k: at(8), ..cache() }, "pages: 1000"),
            (AttentionArgs { seqused_k: std::ptr::null(), ..cache() }, "pages: 1000"),
        ]);
    }
}
