//! Lists of keys of a latent cache in `ferroflash_attention_t`.
use crate::args::{extent, present};
use crate::call::invalid;
use crate::structs::AttentionArgs;
use ferroflash::request::{Index, KeysValues, ListedKeys, TensorView};
use ferroflash::{DType, Error};

impl AttentionArgs {
    /// Returns the lists of `batch` queries, or `None` if the caller has none. `views` returns keys and
    /// values.
    pub(super) fn listed(
        &self,
        batch: usize,
        views: impl Fn([usize; 2], DType) -> [TensorView; 2],
    ) -> Result<Option<KeysValues>, Error> {
        let Some(indices) = present(self.indices) else {
            let expected = "it must be 0 without indices; set indices to give each query a list of keys";
            return if self.topk == 0 { Ok(None) } else { Err(invalid("topk", self.topk, expected)) };
        };
        let others = [
            ("seqused_k", self.seqused_k),
            ("block_table", self.block_table),
            ("cache_batch_idx", self.cache_batch_idx),
            ("cu_seqlens_k", self.cu_seqlens_k),
        ];
        if let Some((name, address)) = others.into_iter().find(|(_, address)| !address.is_null()) {
            let expected = "it must be NULL beside indices: a slot is page * keys per page + row, of the \
                            whole cache; leave it NULL";
            return Err(invalid(name, format_args!("{address:p}"), expected));
        }
        let sizes = [
            ("seqlen_k", self.seqlen_k),
            ("total_k", self.total_k),
            ("columns", self.columns),
            ("table_stride", self.table_stride),
        ];
        if let Some((name, size)) = sizes.into_iter().find(|(_, size)| *size != 0) {
            let expected =
                "it must be 0 beside indices: a list has topk slots of the whole cache; leave it 0";
            return Err(invalid(name, size, expected));
        }
        let pages = self.pages(batch, views)?;
        let (topk, heads) = (extent("topk", self.topk)?, extent("heads_k", self.heads_k)?);
        let slots = [heads, topk].iter().fold(batch as u64, |all, n| all.saturating_mul(*n as u64));
        Ok(Some(KeysValues::Listed(ListedKeys::new(pages, Index::new(indices, slots), topk))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{at, cache, check_refusals, chosen, latent, valid};

    fn listed() -> AttentionArgs {
        let none = std::ptr::null();
        let latent = AttentionArgs { seqused_k: none, block_table: none, mask: 0, ..latent() };
        AttentionArgs { indices: at(8), topk: 2048, seqlen_k: 0, columns: 0, table_stride: 0, ..latent }
    }

    #[test]
    fn lists_of_keys() {
        let KeysValues::Listed(keys) = valid(&listed()).kv else { panic!("lists") };
        assert_eq!((keys.topk, keys.indices), (2048, Index::new(8 << 40, 16 * 2048)));
        assert_eq!((keys.pages.keys.shape, keys.pages.latent_columns()), ([1000, 16, 1, 576], Some(512)));
        let all_columns = AttentionArgs { head_dim: 512, head_dim_v: 512, ..listed() };
        for args in [listed(), all_columns] {
            assert!(chosen(&args, "h200").starts_with("hopper_sparse_mla_f16_d576_full_"));
        }
        assert_eq!(
            chosen(&AttentionArgs { heads_q: 16, ..listed() }, "l4"),
            "sparse_mla_f16_d576_full_16x32"
        );
        let eight = AttentionArgs { dtype: 1, cache_dtype: 2, k_scales: at(9), ..listed() };
        assert_eq!(chosen(&eight, "h200"), "hopper_sparse_mla_bf16_e4m3_d576_full_64x64");
        let scaled = AttentionArgs { cache_dtype: 5, k_strides: [16 * 656, 656, 656, 1], ..eight };
        let scaled = AttentionArgs { k_scales: std::ptr::null(), ..scaled };
        assert_eq!(chosen(&scaled, "h200"), "hopper_sparse_mla_bf16_e4m3_scaled_d576_full_64x64");
    }

    #[test]
    fn refusals_name_the_field_and_its_value() {
        check_refusals(&[
            (AttentionArgs { topk: 5, ..cache() }, "topk: 5"),
            (AttentionArgs { topk: -1, ..listed() }, "topk: -1"),
            (AttentionArgs { topk: 0, ..listed() }, "topk: 0"),
            (AttentionArgs { seqused_k: at(6), ..listed() }, "seqused_k: 0x60000000000"),
            (AttentionArgs { block_table: at(6), ..listed() }, "block_table: 0x60000000000"),
            (AttentionArgs { cache_batch_idx: at(6), ..listed() }, "cache_batch_idx: 0x60000000000"),
            (AttentionArgs { cu_seqlens_k: at(6), ..listed() }, "cu_seqlens_k: 0x60000000000"),
            (AttentionArgs { seqlen_k: 5, ..listed() }, "seqlen_k: 5"),
            (AttentionArgs { total_k: 5, ..listed() }, "total_k: 5"),
            (AttentionArgs { columns: 5, ..listed() }, "columns: 5"),
            (AttentionArgs { table_stride: 5, ..listed() }, "table_stride: 5"),
            (AttentionArgs { k_scale: 0.5, ..listed() }, "k_scale"),
            (AttentionArgs { v_scales: at(6), ..listed() }, "v_scale"),
            (AttentionArgs { cu_seqlens_q: at(6), total_q: 16, ..listed() }, "varlen queries with lists"),
            (AttentionArgs { seqlen_q: 2, ..listed() }, "2 queries per batch with lists"),
            (AttentionArgs { mask: 1, ..listed() }, "mask causal with lists"),
            (AttentionArgs { v: at(3), head_dim_v: 128, head_dim: 128, ..listed() }, "with lists of keys"),
        ]);
    }
}
