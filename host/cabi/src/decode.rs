//! `ferroflash_decode`: few queries a sequence, on a cache whose lengths only the device knows.
use crate::args::{Args, dtype, extent, mask, name, reach, read, slopes};
use crate::call::{Status, borrow, call, invalid};
use crate::context::{Context, enqueue};
use ferroflash::Error;
use ferroflash::request::{
    AttentionRequest, Counters, Index, KvCache, KvPages, KvScale, LseView, Queries, Scratch, Sinks, Splits,
    TensorView, VarlenQueries, Workspace,
};
use std::ffi::{c_char, c_void};

/// `ferroflash_decode_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DecodeArgs {
    /// Bytes of this struct that the caller knows.
    pub size: u64,
    /// Queries.
    pub q: *const c_void,
    /// Keys of the cache.
    pub k_cache: *const c_void,
    /// Its values.
    pub v_cache: *const c_void,
    /// Output.
    pub o: *mut c_void,
    /// Log-sum-exp, or null.
    pub lse: *mut f32,
    /// A logit of each head that belongs to no key, or null.
    pub sinks: *const f32,
    /// Page numbers, or null: a page for each sequence.
    pub block_table: *const i32,
    /// Without a table the page of each sequence; null: that of its own number.
    pub cache_batch_idx: *const i32,
    /// Keys of each sequence.
    pub seqused_k: *const i32,
    /// Sequences.
    pub batch: i64,
    /// Queries of a sequence.
    pub seqlen_q: i64,
    /// Query heads.
    pub heads_q: i64,
    /// Key heads.
    pub heads_k: i64,
    /// Columns of a head.
    pub head_dim: i64,
    /// Pages of the cache.
    pub pages: i64,
    /// Keys of a page.
    pub page: i64,
    /// Page numbers of a sequence.
    pub columns: i64,
    /// Numbers from one row of the table to the next.
    pub table_stride: i64,
    /// Most keys of a sequence; 0: as many as its pages hold.
    pub max_k: i64,
    /// Elements from one batch, row, head, column to the next.
    pub q_strides: [i64; 4],
    /// The same.
    pub o_strides: [i64; 4],
    /// Elements from one page, key and head to the next, of keys and of values.
    pub cache_strides: [i64; 3],
    /// Elements from one batch and head to the next.
    pub lse_strides: [i64; 2],
    /// Element type of queries and output.
    pub dtype: i32,
    /// That of the cache.
    pub cache_dtype: i32,
    /// Mask.
    pub mask: i32,
    /// For the window, -1 is unbounded.
    pub window_left: i32,
    /// The same.
    pub window_right: i32,
    /// Parts of each sequence; 0: the library's choice.
    pub splits: i32,
    /// Keys of a part, instead; 0: none.
    pub chunk: i32,
    /// 0 is `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// 0 is none.
    pub softcap: f32,
    /// Name of an entry, or null.
    pub config: *const c_char,
    /// Workspace, or null.
    pub workspace: *mut c_void,
    /// Its size.
    pub workspace_bytes: u64,
    /// Zeros, or null.
    pub counters: *mut c_void,
    /// Their size.
    pub counters_bytes: u64,
    /// Where packed sequences begin among the rows of Q and O, and the last one ends; or null.
    pub cu_seqlens_q: *const i32,
    /// Rows of Q and O of all packed sequences.
    pub total_q: i64,
    /// Of an e4m3 cache; 0 is 1.
    pub k_scale: f32,
    /// The same.
    pub v_scale: f32,
    /// Scales in device memory, instead of `k_scale`, or null.
    pub k_scales: *const f32,
    /// The same for values.
    pub v_scales: *const f32,
    /// Elements from one sequence and key head to the next, of both.
    pub scales_strides: [i64; 2],
    /// ALiBi slopes in device memory, or null.
    pub alibi_slopes: *const f32,
    /// Elements from one sequence and query head to the next.
    pub alibi_strides: [i64; 2],
    /// Most keys of all sequences together; 0: not known.
    pub total_k: i64,
}

/// Bytes of `ferroflash_decode_t` in version 1 of the interface: less is no such struct.
const DECODE_SIZE_V1: usize = std::mem::offset_of!(DecodeArgs, cu_seqlens_q);

// SAFETY: all fields are plain, the first is the size.
unsafe impl Args for DecodeArgs {
    const NAME: &str = "decode";
    const SIZE: &str = "decode.size";
    const INIT: &str = "FERROFLASH_DECODE_INIT";
    const LEAST: usize = DECODE_SIZE_V1;
}

impl DecodeArgs {
    /// The same as a request of the Rust library, unchecked but for what its types cannot say.
    ///
    /// # Safety
    /// `config` is null or a string that lives for `'a`.
    pub(crate) unsafe fn decode<'a>(&self) -> Result<AttentionRequest<'a>, Error> {
        let [batch, heads] = [extent("batch", self.batch)?, extent("heads_q", self.heads_q)?];
        let [rows, head_dim] = [extent("seqlen_q", self.seqlen_q)?, extent("head_dim", self.head_dim)?];
        let dtypes = [dtype("dtype", self.dtype)?, dtype("cache_dtype", self.cache_dtype)?];
        let (batches, rows, queries) = match self.cu_seqlens_q.is_null() {
            true => (batch, rows, Queries::Batched),
            false => {
                let starts = Index::new(self.cu_seqlens_q as u64, (batch as u64).saturating_add(1));
                let varlen = VarlenQueries::new(batch, starts, rows);
                (1, extent("total_q", self.total_q)?, Queries::Varlen(varlen))
            }
        };
        let shape = [batches, rows, heads, head_dim];
        let view = |address: u64, strides: [i64; 4]| {
            TensorView::new(address, reach(&shape, &strides), dtypes[0], shape, strides)
        };
        let mut decode = AttentionRequest::cached(
            view(self.q as u64, self.q_strides),
            self.cache(batch)?,
            view(self.o as u64, self.o_strides),
        )
        .mask(mask(self.mask, [self.window_left, self.window_right])?)
        .softcap(self.softcap)
        .splits(self.parts()?)
        .queries(queries);
        decode.scores.alibi = slopes(self.alibi_slopes, self.alibi_strides, [batch, heads]);
        decode.scores.scale = (self.scale != 0.0).then_some(self.scale);
        if !self.lse.is_null() {
            let (shape, [by_batch, by_head]) = ([batches, heads, rows], self.lse_strides);
            let elements = reach(&shape, &[by_batch, by_head, 1]);
            decode.lse = Some(LseView::new(self.lse as u64, elements, shape, self.lse_strides));
        }
        let sinks = Sinks { address: self.sinks as u64, elements: heads as u64 };
        decode.scores.sinks = (!self.sinks.is_null()).then_some(sinks);
        let workspace = Workspace { address: self.workspace as u64, bytes: self.workspace_bytes };
        let counters = Counters { address: self.counters as u64, bytes: self.counters_bytes };
        let counters = (!self.counters.is_null()).then_some(counters);
        if !self.workspace.is_null() {
            decode.scratch = Scratch::Memory { workspace, counters };
        }
        // SAFETY: the caller's promise.
        decode.config = unsafe { name("config", self.config)? };
        Ok(decode)
    }

    fn cache(&self, batch: usize) -> Result<KvCache, Error> {
        let [pages, page] = [extent("pages", self.pages)?, extent("page", self.page)?];
        let shape = [pages, page, extent("heads_k", self.heads_k)?, extent("head_dim", self.head_dim)?];
        let dtype = dtype("cache_dtype", self.cache_dtype)?;
        let view = |address: *const c_void| {
            let [page, key, head] = self.cache_strides;
            let strides = [page, key, head, 1];
            TensorView::new(address as u64, reach(&shape, &strides), dtype, shape, strides)
        };
        let scale = |value: f32, in_memory: *const f32| match (in_memory.is_null(), value) {
            (false, _) => {
                let (address, strides) = (in_memory as u64, self.scales_strides);
                KvScale::Device { address, elements: reach(&[batch, shape[2]], &strides), strides }
            }
            (true, 0.0) => KvScale::One,
            (true, value) => KvScale::Value(value),
        };
        let pages = KvPages::new(view(self.k_cache), view(self.v_cache))
            .scales(scale(self.k_scale, self.k_scales), scale(self.v_scale, self.v_scales));
        let of_each = |address: *const i32| Index::new(address as u64, batch as u64);
        let lengths = of_each(self.seqused_k);
        let cache = if !self.block_table.is_null() {
            let columns = extent("columns", self.columns)?;
            let stride = extent("table_stride", self.table_stride)?;
            let numbers = reach(&[batch, columns], &[self.table_stride, 1]);
            KvCache::paged(pages, Index::new(self.block_table as u64, numbers), columns, lengths)
                .table_stride(stride)
        } else if !self.cache_batch_idx.is_null() {
            KvCache::dense(pages, lengths).rows(of_each(self.cache_batch_idx))
        } else {
            KvCache::dense(pages, lengths)
        };
        let cache = if self.max_k == 0 { cache } else { cache.max_k(extent("max_k", self.max_k)?) };
        Ok(if self.total_k == 0 { cache } else { cache.total_k(extent("total_k", self.total_k)?) })
    }

    fn parts(&self) -> Result<Splits, Error> {
        match (u32::try_from(self.splits), u32::try_from(self.chunk)) {
            (Ok(0), Ok(0)) => Ok(Splits::Auto),
            (Ok(parts), Ok(0)) => Ok(Splits::Exactly(parts)),
            (Ok(0), Ok(keys)) => Ok(Splits::Chunk(keys)),
            (Err(_), _) => Err(invalid("splits", self.splits, "it must be 0 or more")),
            _ => Err(invalid("chunk", self.chunk, "it must be 0 or more, and 0 where there are splits")),
        }
    }
}

/// Bytes of workspace and of counters with which a decode runs fastest.
///
/// # Safety
/// - `context` is null or a live context; `decode` is null or a struct of as many bytes as its size says, and
///   its `config` null or a string.
/// - `workspace_bytes` and `counters_bytes` are null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_decode_scratch_size(
    context: *const Context,
    decode: *const DecodeArgs,
    workspace_bytes: *mut u64,
    counters_bytes: *mut u64,
) -> Status {
    call(|| {
        // SAFETY: the caller's promises.
        let (context, args) = unsafe { (borrow("context", context)?, read(decode)?) };
        // SAFETY: the caller's promise; the name is used in this call alone.
        let decode = unsafe { args.decode()? };
        let needs = context.attention().plan(&decode.scratch(Scratch::Fastest))?.scratch_bytes();
        let places = [
            ("workspace_bytes", workspace_bytes, needs.workspace),
            ("counters_bytes", counters_bytes, needs.counters),
        ];
        for (what, place, bytes) in places {
            // SAFETY: the caller's promise.
            let place = unsafe { place.as_mut() };
            *place.ok_or_else(|| invalid(what, "NULL", "it must not be null"))? = bytes;
        }
        Ok(())
    })
}

/// Plans and enqueues a decode.
///
/// # Safety
/// - Those of [`ferroflash_decode_scratch_size`] that concern `context` and `decode`.
/// - `stream` is a stream of the CUDA context, or null.
/// - Every tensor is device memory of the CUDA context as far as its strides reach, workspace and counters as
///   their sizes say, until the launch has run, and until then nothing else writes what it reads or touches
///   what it writes, but in the order of the same stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_decode(
    context: *const Context,
    decode: *const DecodeArgs,
    stream: *mut c_void,
) -> Status {
    call(|| {
        // SAFETY: the caller's promises.
        let (context, args) = unsafe { (borrow("context", context)?, read(decode)?) };
        // SAFETY: the caller's promises; the name is used in this call alone.
        unsafe { enqueue(context, &args.decode()?, stream) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::request::KeysValues;
    use ferroflash::request::Paged;
    use ferroflash::{Capabilities, plan};

    /// Llama 3's 8 billion: 32 query heads on 8, pages of 16 keys.
    fn args() -> DecodeArgs {
        // SAFETY: zeros are a value of every field.
        let none: DecodeArgs = unsafe { std::mem::zeroed() };
        let place = |n: usize| n << 40;
        DecodeArgs {
            size: size_of::<DecodeArgs>() as u64,
            q: place(1) as *const c_void,
            k_cache: place(2) as *const c_void,
            v_cache: place(3) as *const c_void,
            o: place(4) as *mut c_void,
            block_table: place(5) as *const i32,
            seqused_k: place(6) as *const i32,
            batch: 16,
            seqlen_q: 1,
            heads_q: 32,
            heads_k: 8,
            head_dim: 128,
            pages: 1000,
            page: 16,
            columns: 512,
            table_stride: 512,
            q_strides: [32 * 128, 32 * 128, 128, 1],
            o_strides: [32 * 128, 32 * 128, 128, 1],
            cache_strides: [16 * 8 * 128, 8 * 128, 128],
            ..none
        }
    }

    #[test]
    fn what_c_writes_is_what_is_asked_for() {
        let card = Capabilities::profile("h200").expect("known");
        // SAFETY: no name.
        let decode = |args: DecodeArgs| unsafe { args.decode() };
        let cache = |d: &AttentionRequest<'_>| match d.kv {
            KeysValues::Cache(cache) => cache,
            KeysValues::Tensors { .. } | KeysValues::Varlen { .. } => panic!("a cache"),
        };
        let d = decode(args()).expect("valid");
        let made = plan(&d.scratch(Scratch::Fastest), card).expect("valid");
        assert_eq!(made.contract().symbol, "decode_f16_d128_causal_8_tiles");
        assert_eq!((cache(&d).max_k, d.splits, d.lse, d.scores.sinks), (8192, Splits::Auto, None, None));
        assert_eq!((d.q.elements, cache(&d).pages.keys.shape), (16 * 32 * 128, [1000, 16, 8, 128]));
        let known = decode(DecodeArgs { total_k: 9000, ..args() }).expect("valid");
        assert_eq!((cache(&d).total_k, cache(&known).total_k), (None, Some(9000)));
        let rows = (7usize << 40) as *const i32;
        let dense = DecodeArgs {
            block_table: std::ptr::null(),
            cache_batch_idx: rows,
            max_k: 10,
            chunk: 1024,
            mask: 3,
            window_left: 127,
            ..args()
        };
        let d = decode(dense).expect("valid");
        assert_eq!(cache(&d).paged, Paged::Dense { rows: Some(Index::new(7 << 40, 16)) });
        assert_eq!((cache(&d).max_k, d.splits), (10, Splits::CHUNK));
        let packed = DecodeArgs {
            cu_seqlens_q: rows,
            total_q: 99,
            seqlen_q: 70,
            lse: 64 as *mut f32,
            lse_strides: [0, 99],
            ..args()
        };
        let d = decode(packed).expect("valid");
        let varlen = VarlenQueries::new(16, Index::new(7 << 40, 17), 70);
        assert_eq!(d.queries, Queries::Varlen(varlen));
        assert_eq!((d.q.shape, d.lse.expect("asked for").shape), ([1, 99, 32, 128], [1, 32, 99]));
        let made = plan(&d.scratch(Scratch::Fastest), card).expect("valid");
        assert_eq!(made.contract().symbol, "hopper_paged_f16_d128_causal_128x128");
        let scales = (8usize << 40) as *const f32;
        let eight =
            DecodeArgs { cache_dtype: 2, v_scale: 0.5, k_scales: scales, scales_strides: [8, 1], ..args() };
        let scales = KvScale::Device { address: 8 << 40, elements: 15 * 8 + 8, strides: [8, 1] };
        assert_eq!(cache(&decode(eight).expect("valid")).pages.scales, [scales, KvScale::Value(0.5)]);
        for (args, words) in [
            (DecodeArgs { splits: -1, ..args() }, "splits: -1"),
            (DecodeArgs { splits: 2, chunk: 128, ..args() }, "chunk: 128"),
            (DecodeArgs { mask: 2, ..args() }, "mask: 2"),
            (DecodeArgs { columns: -1, ..args() }, "columns: -1"),
            (DecodeArgs { total_k: -1, ..args() }, "total_k: -1"),
            (DecodeArgs { cu_seqlens_q: rows, total_q: -1, ..args() }, "total_q: -1"),
        ] {
            let error = decode(args).expect_err("refused").to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
