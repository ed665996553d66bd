//! Converts `ferroflash_attention_t` to an [`AttentionRequest`].
use crate::args::{Ask, constant, dtype, extent, name, present, reach, rows_of, splits_of, view};
use crate::call::invalid;
use crate::structs::AttentionArgs;
use ferroflash::request::{
    AlibiSlopes, Alignment, AttentionRequest, Index, Invariance, KeysValues, Precision, Queries, Region,
    Scores, Scratch, SharedPrefixes, Sinks, VarlenKeys, VarlenQueries,
};
use ferroflash::spec::E4m3Scaled;
use ferroflash::{DType, Error};

mod cached;
mod extras;
mod listed;

pub(crate) use extras::bias_like;

impl Ask for AttentionArgs {
    type Request<'a> = AttentionRequest<'a>;

    unsafe fn request<'a>(&self) -> Result<AttentionRequest<'a>, Error> {
        let [batch, heads] = [extent("batch", self.batch)?, extent("heads_q", self.heads_q)?];
        let queries = self.queries(batch)?;
        let (batches, rows) = match queries {
            Queries::Varlen(_) => (1, extent("total_q", self.total_q)?),
            _ => (batch, extent("seqlen_q", self.seqlen_q)?),
        };
        let (head_dim, dtype) = (extent("head_dim", self.head_dim)?, dtype("dtype", self.dtype)?);
        let shape = |columns| [batches, rows, heads, columns];
        let q = view(self.q, dtype, shape(head_dim), self.q_strides);
        let o = view(
            self.o.cast_const(),
            self.o_dtype(dtype)?,
            shape(self.head_dim_v(head_dim)?),
            self.o_strides,
        );
        let mut request = AttentionRequest::new(q, queries, self.keys_values(batch)?, o)
            .alignment(self.alignment()?)
            .scores(self.scores([batch, heads]))
            .scratch(self.scratch())
            .splits(splits_of(self.split_keys, self.splits)?)
            .invariance(self.invariance()?)
            .precision(self.precision()?)
            .descales(self.descales([batch, extent("heads_k", self.heads_k)?]));
        let shape = [batches, heads, rows];
        let of_rows = |_, (address, [batch, head]): (*mut f32, [i64; 2])| {
            present(address).map(|address| rows_of(address, shape, [batch, head, 1]))
        };
        request = request.with_rows(self.rows().map(of_rows));
        let of_heads = |address| Sinks { address, elements: heads as u64 };
        request.max_logits_head = present(self.max_logits_head).map(of_heads);
        request.shared_prefixes = self.shared_prefixes(batch)?;
        let sizes = request.problem();
        (request.mask, request.scores.bias) = (self.mask(&sizes)?, self.bias(&sizes)?);
        // SAFETY: the caller promises that `config` is null or a string.
        request.config = unsafe { name("config", self.config)? };
        Ok(request)
    }
}

impl AttentionArgs {
    /// Returns the number of columns of V and O. 0 stands for the number of K's columns.
    fn head_dim_v(&self, head_dim: usize) -> Result<usize, Error> {
        if self.head_dim_v == 0 { Ok(head_dim) } else { extent("head_dim_v", self.head_dim_v) }
    }

    /// Returns the number of columns of a latent cache's values. The values are the first columns of keys.
    fn latent(&self, head_dim: usize) -> Result<Option<usize>, Error> {
        let latent = self.v.is_null() && self.head_dim_v != 0;
        latent.then(|| self.head_dim_v(head_dim)).transpose()
    }

    fn scores(&self, [batch, heads]: [usize; 2]) -> Scores {
        let mut scores = Scores::new().softcap(self.softcap);
        scores.scale = (self.scale != 0.0).then_some(self.scale);
        scores.sinks = present(self.sinks).map(|address| Sinks { address, elements: heads as u64 });
        scores.alibi = present(self.alibi_slopes).map(|address| {
            let elements = reach(&[batch, heads], &self.alibi_strides);
            AlibiSlopes::new(address, elements).strides(self.alibi_strides)
        });
        scores
    }

    /// Returns the shared prefixes, if any. 0 groups count as one group.
    fn shared_prefixes(&self, batch: usize) -> Result<Option<SharedPrefixes>, Error> {
        let Some(rest) = present(self.rest_lengths) else {
            let fields = [("prefix_groups", self.prefix_groups), ("prefix_pages", self.prefix_pages)];
            let expected = "it must be 0 without rest_lengths; set rest_lengths to share prefixes";
            let given = fields.into_iter().find(|(_, value)| *value != 0);
            return given.map_or(Ok(None), |(name, value)| Err(invalid(name, value, expected)));
        };
        let count = if self.prefix_groups == 0 { 1 } else { extent("prefix_groups", self.prefix_groups)? };
        let rest = Index::new(rest, batch as u64);
        Ok(Some(SharedPrefixes::equal(count, extent("prefix_pages", self.prefix_pages)?, rest)))
    }

    fn alignment(&self) -> Result<Alignment, Error> {
        let expected = "it must be FERROFLASH_BOTTOM_RIGHT or FERROFLASH_TOP_LEFT";
        constant("alignment", self.alignment, &[Alignment::BottomRight, Alignment::TopLeft], expected)
    }

    fn invariance(&self) -> Result<Invariance, Error> {
        let expected = "it must be FERROFLASH_INVARIANCE_NONE, _BATCH or _BATCH_AND_CHUNKS";
        let all = [Invariance::None, Invariance::Batch, Invariance::BatchAndChunks];
        constant("invariance", self.invariance, &all, expected)
    }

    fn precision(&self) -> Result<Precision, Error> {
        let expected = "it must be FERROFLASH_PRECISION_INPUTS, _INT8_F16, _INT8_FP8 or _FP8";
        let all = [Precision::Inputs, Precision::Int8Fp8, Precision::Fp8, Precision::Int8F16];
        constant("precision", self.precision, &all, expected)
    }

    fn scratch(&self) -> Scratch {
        let counters = present(self.counters).map(|address| Region { address, bytes: self.counters_bytes });
        present(self.workspace).map_or(Scratch::None, |address| Scratch::Memory {
            workspace: Region { address, bytes: self.workspace_bytes },
            counters,
        })
    }

    fn queries(&self, batch: usize) -> Result<Queries, Error> {
        let used = present(self.seqused_q).map(|address| Index::new(address, batch as u64));
        let Some(starts) = offsets(self.cu_seqlens_q, batch) else {
            let expected = "only varlen queries have padding; set cu_seqlens_q, or leave it NULL";
            let given = used.map(|_| invalid("seqused_q", format_args!("{:p}", self.seqused_q), expected));
            return given.map_or(Ok(Queries::Batched), Err);
        };
        if self.cu_seqlens_k.is_null() && self.seqused_k.is_null() && self.indices.is_null() {
            let expected = "varlen queries need varlen keys (cu_seqlens_k) or a KV cache (seqused_k)";
            return Err(invalid("cu_seqlens_k", "NULL", expected));
        }
        let mut queries = VarlenQueries::new(batch, starts, extent("seqlen_q", self.seqlen_q)?);
        queries.seqused_q = used;
        Ok(Queries::Varlen(queries))
    }

    /// Returns keys and values. If queries have lists, the keys are those of a latent cache. If keys have
    /// offsets, they are varlen keys. If keys have only lengths, they are in a KV cache. Otherwise they are
    /// tensors.
    fn keys_values(&self, batch: usize) -> Result<KeysValues, Error> {
        let [heads, head_dim] = [extent("heads_k", self.heads_k)?, extent("head_dim", self.head_dim)?];
        let columns = self.head_dim_v(head_dim)?;
        let views = |[batches, rows]: [usize; 2], dtype| {
            let stored = if dtype == DType::E4m3Scaled { E4m3Scaled::ROW_BYTES } else { head_dim };
            let all = [(self.k, stored, self.k_strides), (self.v, columns, self.v_strides)];
            all.map(|(at, columns, strides)| view(at, dtype, [batches, rows, heads, columns], strides))
        };
        if let Some(listed) = self.listed(batch, views)? {
            return Ok(listed);
        }
        let used = present(self.seqused_k).map(|address| Index::new(address, batch as u64));
        if let Some(starts) = offsets(self.cu_seqlens_k, batch) {
            if self.cu_seqlens_q.is_null() {
                let expected = "varlen keys need varlen queries; set cu_seqlens_q";
                return Err(invalid("cu_seqlens_q", "NULL", expected));
            }
            self.lacks_cache("cu_seqlens_k is for tensors without pages; leave cu_seqlens_k NULL")?;
            let [k, v] = views([1, extent("total_k", self.total_k)?], dtype("dtype", self.dtype)?);
            let mut keys = VarlenKeys::new(starts, extent("seqlen_k", self.seqlen_k)?);
            keys.seqused_k = used;
            return Ok(KeysValues::Varlen { k, v, keys });
        }
        let Some(lengths) = used else {
            self.lacks_cache("a KV cache needs the number of keys of each sequence; set seqused_k")?;
            let rows = extent("seqlen_k", self.seqlen_k)?;
            let [k, v] = views([batch, rows], dtype("dtype", self.dtype)?);
            return Ok(KeysValues::Tensors { k, v });
        };
        self.cache(batch, self.pages(batch, views)?, lengths).map(KeysValues::Cache)
    }
}

/// Returns the offsets of varlen sequences, if any.
fn offsets(address: *const i32, batch: usize) -> Option<Index> {
    present(address).map(|address| Index::new(address, (batch as u64).saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{at, cache, check_refusals, latent, tensors, valid, varlen};
    use ferroflash::request::{Descales, KvCache, KvPages, KvScale, Mask, Paged, Splits, TokenScales};
    use ferroflash::{Capabilities, plan};

    fn in_cache(args: &AttentionArgs) -> KvCache {
        match valid(args).kv {
            KeysValues::Cache(cache) => cache,
            _ => panic!("a cache"),
        }
    }

    fn chosen(args: &AttentionArgs) -> &'static str {
        let card = Capabilities::profile("h200").expect("known");
        plan(&valid(args).scratch(Scratch::Fastest), card).expect("planned").contract().symbol
    }

    #[test]
    fn tensors_and_varlen_sequences() {
        let r = valid(&tensors());
        let [k, _] = r.kv.tensors().expect("tensors");
        assert_eq!((r.q.shape, k.shape, r.q.elements), ([3, 5, 4, 64], [3, 7, 2, 64], 3 * 5 * 256));
        assert_eq!((r.scores, r.lse, r.config), (Scores::new().softcap(5.0), None, None));
        assert_eq!((r.mask, r.queries, r.scratch), (Mask::Full, Queries::Batched, Scratch::None));
        let r = valid(&AttentionArgs { mask: 3, window_left: -1, ..tensors() });
        assert_eq!(r.mask, Mask::Window { left: None, right: Some(0) });
        let lse = at(7);
        let r = valid(&AttentionArgs { lse, lse_strides: [20, 5], ..tensors() });
        let view = r.lse.expect("asked for");
        assert_eq!((view.shape, view.elements), ([3, 4, 5], 2 * 20 + 3 * 5 + 4 + 1));
        let r = valid(&AttentionArgs { max_logits: lse, max_logits_strides: [40, 10], ..tensors() });
        let view = r.max_logits.expect("asked for");
        assert_eq!((r.lse, view.shape, view.elements), (None, [3, 4, 5], 2 * 40 + 3 * 10 + 4 + 1));
        let r = valid(&AttentionArgs { workspace: at(8), workspace_bytes: 4096, ..tensors() });
        assert_eq!(r.scratch, Scratch::workspace(8 << 40, 4096));
        assert_eq!(valid(&AttentionArgs { config: c"fwd_x".as_ptr(), ..tensors() }).config, Some("fwd_x"));

        let r = valid(&AttentionArgs { lse, ..varlen() });
        let [_, v] = r.kv.tensors().expect("tensors");
        assert_eq!((r.q.shape, v.shape), ([1, 11, 4, 64], [1, 13, 2, 64]));
        assert_eq!(r.lse.expect("asked for").shape, [1, 4, 11]);
        let queries = VarlenQueries::new(3, Index::new(5 << 40, 4), 5);
        assert_eq!(r.queries, Queries::Varlen(queries));
        let r = valid(&AttentionArgs { seqused_q: at(7), max_logits_head: at(8), ..varlen() });
        assert_eq!(r.queries, Queries::Varlen(queries.seqused_q(Index::new(7 << 40, 3))));
        assert_eq!(r.max_logits_head, Some(Sinks { address: 8 << 40, elements: 4 }));
        let keys = |args: &AttentionArgs| match valid(args).kv {
            KeysValues::Varlen { keys, .. } => keys,
            _ => panic!("varlen"),
        };
        let all = VarlenKeys::new(Index::new(6 << 40, 4), 7);
        assert_eq!(keys(&varlen()), all);
        let used = AttentionArgs { seqused_k: at(7), ..varlen() };
        assert_eq!(keys(&used), all.seqused_k(Index::new(7 << 40, 3)));
    }

    #[test]
    fn caches() {
        assert_eq!(chosen(&cache()), "decode_f16_d128_causal_8_tiles");
        let (r, c) = (valid(&cache()), in_cache(&cache()));
        assert_eq!((c.max_k, r.splits, r.lse, r.scores.sinks), (8192, Splits::Auto, None, None));
        assert_eq!((r.q.elements, c.pages.keys.shape, c.total_k), (16 * 32 * 128, [1000, 16, 8, 128], None));
        assert_eq!(in_cache(&AttentionArgs { total_k: 9000, ..cache() }).total_k, Some(9000));
        let paged = AttentionArgs { block_table: std::ptr::null(), ..cache() };
        let dense = AttentionArgs { cache_batch_idx: at(7), seqlen_k: 10, split_keys: 1024, ..paged };
        assert_eq!(in_cache(&dense).paged, Paged::Dense { rows: Some(Index::new(7 << 40, 16)) });
        assert_eq!((in_cache(&dense).max_k, valid(&dense).splits), (10, Splits::Keys(1024)));
        let lse = at(8);
        let on_cache = AttentionArgs { cu_seqlens_q: at(7), total_q: 99, seqlen_q: 70, ..cache() };
        let varlen = AttentionArgs { lse, lse_strides: [0, 99], ..on_cache };
        let r = valid(&varlen);
        assert_eq!(r.queries, Queries::Varlen(VarlenQueries::new(16, Index::new(7 << 40, 17), 70)));
        assert_eq!((r.q.shape, r.lse.expect("asked for").shape), ([1, 99, 32, 128], [1, 32, 99]));
        // The first request has a mean of six queries per sequence, the second a mean of 70.
        assert_eq!(chosen(&varlen), "mixed_few_f16_d128_causal_16_rows_w4");
        let prompts = AttentionArgs { total_q: 16 * 70, lse: std::ptr::null_mut(), ..varlen };
        assert_eq!(chosen(&prompts), "hopper_paged_f16_d128_causal_128x128");
        let eight = AttentionArgs {
            cache_dtype: 2,
            v_scale: 0.5,
            k_scales: at(8),
            scales_strides: [8, 1],
            ..cache()
        };
        let scales = KvScale::Device { address: 8 << 40, elements: 15 * 8 + 8, strides: [8, 1] };
        assert_eq!(in_cache(&eight).pages.scales, [scales, KvScale::Value(0.5)]);
        let integers = AttentionArgs { cache_dtype: 4, k_scales: at(8), v_scales: at(9), ..cache() };
        let KvPages { keys, scales, .. } = in_cache(&integers).pages;
        let slots = (keys.shape[0] * keys.shape[1]) as u64;
        let tokens = |n: u64| KvScale::Tokens(TokenScales::contiguous(n << 40, slots * 8, 8));
        assert_eq!(scales, [tokens(8), tokens(9)]);
        assert_eq!(chosen(&integers), "decode_f16_int8_d128_local_8_rows");
        let mixed = AttentionArgs { cu_seqlens_q: at(7), total_q: 99, seqlen_q: 70, ..integers };
        assert_eq!(chosen(&mixed), "mixed_few_f16_int8_d128_causal_16_rows");
    }

    #[test]
    fn latent_caches() {
        assert_eq!(chosen(&latent()), "hopper_mla_f16_d576_causal_64x64");
        let (r, c) = (valid(&latent()), in_cache(&latent()));
        assert_eq!((r.o.shape, r.o.elements), ([16, 1, 128, 512], 16 * 128 * 512));
        assert_eq!((c.pages.latent_columns(), c.pages.values.address), (Some(512), c.pages.keys.address));
        let eight = AttentionArgs { cache_dtype: 2, k_scale: 0.5, ..latent() };
        assert_eq!(chosen(&eight), "hopper_mla_f16_e4m3_d576_causal_64x64");
        assert_eq!(in_cache(&eight).pages.scales, [KvScale::Value(0.5), KvScale::One]);
        let scaled =
            AttentionArgs { dtype: 1, cache_dtype: 5, k_strides: [16 * 656, 656, 656, 1], ..latent() };
        assert_eq!(chosen(&scaled), "hopper_mla_bf16_e4m3_scaled_d576_causal_64x64");
        let KvPages { keys, values, .. } = in_cache(&scaled).pages;
        assert_eq!((keys.shape[3], values.shape[3], keys.elements), (656, 512, 1000 * 16 * 656));
    }

    #[test]
    fn tensors_of_e4m3() {
        let (q_descale, v_descale_strides) = (at(8), [0, 1]);
        let [of_q, of_k] = [[5 * 256, 256, 64, 1], [7 * 128, 128, 64, 1]];
        let strides = AttentionArgs { k_strides: of_k, v_strides: of_k, o_strides: of_q, ..tensors() };
        let plain = AttentionArgs { dtype: 2, softcap: 0.0, ..strides };
        let eight = AttentionArgs { q_descale, q_descale_strides: [9, 1], ..plain };
        let eight = AttentionArgs { v_descale: at(9), v_descale_strides, ..eight };
        let r = valid(&eight);
        assert_eq!((r.o.dtype, r.problem().precision), (DType::Bf16, Precision::Fp8));
        let [batch, heads] = [r.q.shape[0] as u64, r.problem().heads_k as u64];
        let scale = |n: u64, strides: [i64; 2]| {
            let elements = (batch - 1) * strides[0] as u64 + heads;
            KvScale::Device { address: n << 40, elements, strides }
        };
        assert_eq!(r.descales, Descales::new(scale(8, [9, 1]), KvScale::One, scale(9, [0, 1])));
        assert_eq!(chosen(&eight), "fp8_bf16_d64_full_128x128");
        assert!(chosen(&AttentionArgs { output_f16: 1, ..eight }).starts_with("fp8_f16_d"));
    }

    #[test]
    fn shared_prefixes() {
        let shared = AttentionArgs { rest_lengths: at(9), prefix_pages: 128, ..cache() };
        let rest = Index::new(9 << 40, 16);
        assert_eq!(valid(&shared).shared_prefixes, Some(SharedPrefixes::one(128, rest)));
        let shared = AttentionArgs { prefix_groups: 4, ..shared };
        assert_eq!(valid(&shared).shared_prefixes, Some(SharedPrefixes::equal(4, 128, rest)));
        let card = Capabilities::profile("h200").expect("known");
        let plan = plan(&valid(&shared).scratch(Scratch::Fastest), card).expect("planned");
        assert!(plan.reason().contains("share prefixes"), "{}", plan.reason());
        assert_eq!(valid(&cache()).shared_prefixes, None);
    }

    #[test]
    fn refusals_name_the_field_and_its_value() {
        let none = std::ptr::null();
        check_refusals(&[
            (AttentionArgs { dtype: 9, ..tensors() }, "dtype: 9"),
            (AttentionArgs { mask: -1, ..tensors() }, "mask: -1"),
            (AttentionArgs { mask: 2, ..cache() }, "mask: 2"),
            (AttentionArgs { batch: -1, ..tensors() }, "batch: -1"),
            (AttentionArgs { mask: 3, window_left: -2, ..tensors() }, "window_left: -2"),
            (AttentionArgs { config: c"\xff".as_ptr(), ..tensors() }, "UTF-8"),
            (AttentionArgs { cu_seqlens_q: at(5), ..tensors() }, "cu_seqlens_k: NULL"),
            (AttentionArgs { seqused_q: at(7), ..tensors() }, "seqused_q: 0x70000000000"),
            (AttentionArgs { cu_seqlens_q: none, ..varlen() }, "cu_seqlens_q: NULL"),
            (AttentionArgs { splits: -1, ..cache() }, "splits: -1"),
            (AttentionArgs { splits: 2, split_keys: 128, ..cache() }, "split_keys: 128"),
            (AttentionArgs { invariance: 3, ..cache() }, "invariance: 3"),
            (AttentionArgs { precision: 4, ..tensors() }, "precision: 4"),
            (AttentionArgs { output_f16: 1, ..tensors() }, "output_f16: 1"),
            (AttentionArgs { dtype: 2, output_f16: 2, ..tensors() }, "output_f16: 2"),
            (AttentionArgs { columns: -1, ..cache() }, "columns: -1"),
            (AttentionArgs { total_k: -1, ..cache() }, "total_k: -1"),
            (AttentionArgs { cu_seqlens_q: at(7), total_q: -1, ..cache() }, "total_q: -1"),
            (AttentionArgs { alignment: 2, ..tensors() }, "alignment: 2"),
            (AttentionArgs { head_dim_v: -8, ..latent() }, "head_dim_v: -8"),
            (AttentionArgs { head_dim_v: -8, ..tensors() }, "head_dim_v: -8"),
            (AttentionArgs { dtype: 5, ..tensors() }, "dtype e4m3_scaled"),
            (AttentionArgs { cache_dtype: 5, ..latent() }, "dtype e4m3_scaled on a latent cache"),
            (AttentionArgs { dtype: 1, cache_dtype: 5, k_scale: 0.5, ..latent() }, "cache.k_scale"),
            (AttentionArgs { cache_dtype: 2, v_scale: 0.5, ..latent() }, "cache.v_scale"),
            (AttentionArgs { rest_lengths: at(9), prefix_pages: -1, ..cache() }, "prefix_pages: -1"),
            (AttentionArgs { rest_lengths: at(9), prefix_groups: -1, ..cache() }, "prefix_groups: -1"),
            (AttentionArgs { prefix_groups: 4, ..cache() }, "prefix_groups: 4"),
            (AttentionArgs { prefix_pages: 128, ..cache() }, "prefix_pages: 128"),
        ]);
    }
}
