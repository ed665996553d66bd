//! The structs of `ferroflash.h`, the only declaration of their fields. A test generates the structs of the
//! header with their INIT macros, and `python/ferroflash/_bindings.py` (`tests/bindings.rs`).
use crate::args::Args;
use crate::layout::{CType, Field, c_struct};
use ferroflash::request::RowOutputs;
use std::ffi::{c_char, c_void};

impl CType for *const AttentionArgs {
    const C: &'static str = "const ferroflash_attention_t *";
}

impl CType for *const StateArgs {
    const C: &'static str = "const ferroflash_state_t *";
}

c_struct! {
    /// `ferroflash_attention_t`.
    AttentionArgs: "attention", from 312, size ferroflash_attention_size {
        size: u64;
        /// Device addresses, multiples of 16.
        q, k, v: *const c_void;
        o: *mut c_void;
        lse: *mut f32, "natural log-sum-exp of each row, contiguous for each head; NULL: not written";
        batch: i64, "number of sequences";
        seqlen_q, seqlen_k: i64;
        heads_q: i64, "a multiple of heads_k";
        heads_k: i64;
        head_dim: i64, "a multiple of 8 (e4m3 or int8 KV cache: 16), at most 512 (latent cache: 576)";
        /// Strides count elements from one batch, row, head or column to the next. Element [b, s, h, d]:
        ///   q[b * q_strides[0] + s * q_strides[1] + h * q_strides[2] + d * q_strides[3]]
        ///
        /// | layout | strides |
        /// |---|---|
        /// | [batch, seqlen, heads, head_dim] | {seqlen * heads * head_dim, heads * head_dim, head_dim, 1} |
        /// | [batch, heads, seqlen, head_dim] | {heads * seqlen * head_dim, head_dim, seqlen * head_dim, 1} |
        ///
        /// In a KV cache, pages are batches and keys are rows. Decode and append need equal strides of k and
        /// v. The last stride is 1; the others are multiples of 16 bytes. The stride of a dimension of extent
        /// 1 is ignored. An input may have a stride of 0. The rows of an output must not overlap.
        q_strides, k_strides, v_strides, o_strides: [i64; 4];
        lse_strides: [i64; 2], "elements from one batch and from one head to the next";
        dtype: i32, "type of q and o; also of k and v, unless these are a KV cache";
        mask: i32;
        window_left: i32, "FERROFLASH_MASK_WINDOW: keys before the position; -1: unbounded";
        window_right: i32, "FERROFLASH_MASK_WINDOW: keys after the position; -1: unbounded";
        alignment: i32, "must be FERROFLASH_BOTTOM_RIGHT on a KV cache";
        cache_dtype: i32, "type of a KV cache: dtype, _E4M3, _INT8 or _E4M3_SCALED; otherwise ignored";
        scale: f32, "softmax scale, above 0; 0: 1 / sqrt(head_dim)";
        softcap: f32, "a score becomes softcap * tanh(score / softcap); 0: off";
        config: *const c_char, "name of the kernel to run; NULL: the planner chooses";
        workspace: *mut c_void, "device address, a multiple of 16; NULL: no split-KV kernel runs";
        workspace_bytes: u64;
        /// Device address, a multiple of 4. The caller sets the counters to zero before the first launch, and
        /// again after a launch that failed. A launch that succeeds leaves zeros. One stream at a time may
        /// use the counters. NULL: a second kernel combines the splits. It also does if
        /// ferroflash_scratch_size asks for 0 bytes.
        counters: *mut c_void;
        counters_bytes: u64;
        /// An older struct may end here. All following fields are optional: 0 or NULL turns a field off.
        cu_seqlens_q, cu_seqlens_k, seqused_k: *const i32;
        total_q: i64, "number of rows of q and o, if cu_seqlens_q is set";
        total_k: i64;
        block_table: *const i32, "[batch, columns]: the pages of each sequence; NULL: a dense KV cache";
        cache_batch_idx: *const i32, "[batch]: pages of a dense cache; NULL: page b, or block_table";
        pages: i64, "number of pages; a dense KV cache has one page per sequence";
        page: i64, "keys per page";
        columns: i64, "page indices per sequence in block_table";
        /// integers from one row of block_table to the next: columns or more if batch > 1
        table_stride: i64;
        splits: i32, "number of KV splits; 2 or more need a workspace; 0: the library chooses";
        /// Keys per KV split, a multiple of 128, instead of `splits`. Two splits need a workspace. 0: off.
        split_keys: i32;
        k_scale: f32, "e4m3 KV cache: a key is the stored number times k_scale; 0 means 1";
        v_scale: f32, "e4m3 KV cache: a value is the stored number times v_scale; 0 means 1";
        k_scales: *const f32, "[batch, heads_k] in device memory, instead of k_scale; or NULL";
        v_scales: *const f32, "[batch, heads_k] in device memory, instead of v_scale; or NULL";
        /// Elements, on an e4m3 KV cache from one sequence and from one head to the next; 0: shared. int8 KV
        /// cache: k_scales and v_scales are [pages, page, heads_k], k_scale and v_scale are 0, and strides
        /// are elements from one slot (row of a page) and from one head to the next; {0, 0}: contiguous.
        scales_strides: [i64; 2];
        sinks: *const f32, "[heads_q]: attention sinks, one logit per query head; or NULL";
        /// ALiBi slopes of the query heads, in device memory. The kernel subtracts slope * |i + seqlen_k -
        /// seqlen_q - j| (FERROFLASH_TOP_LEFT: slope * |i - j|) from the score of query i and key j, before
        /// the mask. NULL: off.
        alibi_slopes: *const f32;
        alibi_strides: [i64; 2], "elements from one sequence and from one head to the next; 0: shared";
        /// Device address of a bias, a multiple of 4. The kernel adds element [b, h, i, j] to the scaled and
        /// capped score of query i and key j of sequence b; query 0 and key 0 are the first of the sequence.
        /// A row has seqlen_k elements, or on a KV cache the maximum number of keys per sequence. If a row
        /// has an odd number of 16-bit elements, memory has one more element per row. NULL: off.
        bias: *const c_void;
        /// Elements from one sequence, head and query to the next; each is a multiple of 4 bytes. 0: shared.
        bias_strides: [i64; 3];
        /// For FERROFLASH_MASK_PREFIX, in device memory: [batch], the number of keys of each prefix. NULL:
        /// every prefix has mask_length keys.
        prefix_lengths: *const i32;
        /// For FERROFLASH_MASK_BITS, in device memory. Bit j of row [b, h, i] is 1 if query i of sequence b
        /// sees key max(n - mask_bits_keys, 0) + j of the sequence's n keys. The least significant bit comes
        /// first. The query sees all earlier keys.
        mask_bits: *const u8;
        mask_bits_strides: [i64; 3], "bytes from one sequence, head and query to the next; 0: shared";
        mask_bits_keys: i64, "number of bits per query; 0: seqlen_k";
        bias_dtype: i32, "FERROFLASH_F16, _BF16 or _F32";
        mask_length: i32, "_MASK_PREFIX: keys of every prefix; _MASK_CHUNKED: positions per chunk";
        /// Columns of v and o: a multiple of 8, at most 512. 0 means head_dim columns. On a KV cache without
        /// v (NULL), a head_dim_v above 0 means a latent cache (MLA): its values are the first head_dim_v
        /// columns of its keys, and scale must not be 0.
        head_dim_v: i64;
        /// Groups of consecutive sequences share their first pages in block_table (cascade attention). If
        /// that pays, a launch reads these pages once for all queries of a group. [batch] in device memory:
        /// the keys of each sequence behind its shared pages. Every sequence's seqused_k must have at least
        /// the keys of these pages, also if the sequence only pads the batch of a captured graph. NULL: off;
        /// prefix_groups and prefix_pages must be 0.
        rest_lengths: *const i32;
        prefix_groups: i64, "number of groups of equal numbers of sequences; 0 means 1";
        prefix_pages: i64, "number of pages that the sequences of a group share";
        /// The largest score of each row, as the softmax sees it: scaled, after softcap, slopes and bias,
        /// before sinks; -inf for a row that sees no key. Kernels for dense tensors write it, and
        /// Hopper's for varlen tensors of head dim 128; on other tensors and beside `entropy`, kernels of
        /// statistics do, which run behind the attention. NULL: not written. All outputs of rows have equal
        /// strides.
        max_logits: *mut f32;
        max_logits_strides: [i64; 2], "elements from one batch and from one head to the next";
        /// Lists of keys of a latent cache (sparse MLA), [batch, heads_k, topk] in device memory, contiguous:
        /// query b sees the slots of its list, and no other key. A slot is page * keys per page + row. A slot
        /// that stands twice counts twice; the kernel skips a slot that is negative or beyond all pages.
        /// batch is the number of queries of all sequences, seqlen_q is 1, and mask is
        /// FERROFLASH_MASK_FULL. seqused_k, block_table and cache_batch_idx are NULL; seqlen_k, total_k,
        /// columns and table_stride are 0. NULL: off.
        indices: *const i32;
        topk: i64, "number of slots in each list; 0 without indices";
        /// The entropy of each row's probabilities over keys, in nats, without the weight of sinks; 0 for a
        /// row that sees no key. A kernel of statistics writes it. NULL: not written.
        entropy: *mut f32;
        entropy_strides: [i64; 2], "elements from one batch and from one head to the next";
        /// This field limits what a result's bits depend on: FERROFLASH_INVARIANCE_NONE, _BATCH or
        /// _BATCH_AND_CHUNKS.
        invariance: i32;
        /// The precision of the products: FERROFLASH_PRECISION_INPUTS, _INT8_F16, _INT8_FP8 or _FP8. The
        /// other ones than _INPUTS are less accurate, faster in long prefill, and need a workspace.
        precision: i32;
        /// [batch] in device memory, beside cu_seqlens_q: the number of used rows of each sequence. The last
        /// one aligns with the last key. Rows behind it are padding: they get o = 0 and lse = -inf, or the
        /// sink. A launch needs a workspace. NULL: every row is used.
        seqused_q: *const i32;
        /// [heads_q] in device memory: the largest of all rows' max_logits of each query head; -inf for a
        /// head whose rows see no key. Without max_logits, a launch needs a workspace. NULL: not written.
        max_logits_head: *mut f32;
        /// For tensors q, k, v of FERROFLASH_E4M3: a number of q is the stored number times the scale of its
        /// sequence and key head, [batch, heads_k] in device memory. k_descale and v_descale likewise. Such a
        /// launch has the precision _FP8 and needs a workspace. NULL: scales of 1.
        q_descale: *const f32;
        k_descale: *const f32;
        v_descale: *const f32;
        q_descale_strides: [i64; 2], "elements from one sequence and from one head to the next; 0: shared";
        k_descale_strides: [i64; 2];
        v_descale_strides: [i64; 2];
        output_f16: i32, "o of q, k and v of FERROFLASH_E4M3 is 0: bf16, 1: f16; otherwise 0";
    }
}

impl AttentionArgs {
    /// Returns the outputs of rows, with their strides.
    pub(crate) const fn rows(&self) -> RowOutputs<(*mut f32, [i64; 2])> {
        let max_logits = (self.max_logits, self.max_logits_strides);
        let entropy = (self.entropy, self.entropy_strides);
        RowOutputs { lse: (self.lse, self.lse_strides), max_logits, entropy }
    }
}

c_struct! {
    /// `ferroflash_plan_info_t`.
    PlanInfo: "plan_info", from 56, size ferroflash_plan_info_size {
        size: u64;
        entry: *const c_char, "name of the attention kernel; valid as long as the library is loaded";
        reason: *const c_char, "why the planner chose it; valid as long as the plan lives";
        grid: [u32; 3], "thread blocks";
        block: [u32; 3], "threads per block";
        smem_bytes: u64, "dynamic shared memory per block";
        workspace_bytes: u64, "bytes of workspace that each launch uses; 0: none";
        counters_bytes: u64, "bytes of counters that a launch uses if it gets counters; 0: none";
    }
}

c_struct! {
    /// `ferroflash_backward_t`.
    BackwardArgs: "backward", from 216, size ferroflash_backward_size {
        size: u64;
        /// The attention, in host memory. Its launch has written o and lse; both are inputs here, and lse
        /// must not be NULL. Its workspace, counters, splits, split_keys and config are ignored.
        forward: *const AttentionArgs;
        d_o: *const c_void, "the gradient of o, of o's shape";
        dq: *mut c_void, "output: the gradient of q, of q's shape";
        dk: *mut c_void, "output: the gradient of k, of k's shape";
        dv: *mut c_void, "output: the gradient of v, of v's shape";
        d_o_strides, dq_strides, dk_strides, dv_strides: [i64; 4];
        d_lse: *const f32, "the gradient of lse, contiguous for each head; NULL: zeros";
        d_lse_strides: [i64; 2], "elements from one batch and from one head to the next";
        workspace: *mut c_void, "device address, a multiple of 16; plans may lack it, launches need it";
        workspace_bytes: u64, "at least workspace_bytes of the plan's ferroflash_plan_info_t";
        dsinks: *mut f32, "output, [heads_q]: the gradient of the forward's sinks; NULL: not written";
        /// Output, a multiple of 4: the gradient of the forward's bias, of bias_dtype. Where a stride of the
        /// bias is 0, the gradient is the sum over sequences or heads, and its stride is ignored. A row of an
        /// odd number of 16-bit elements has one more element in memory, which becomes 0. NULL: not written.
        dbias: *mut c_void;
        dbias_strides: [i64; 3], "elements from one sequence, head and row to the next, multiples of 4 bytes";
    }
}

c_struct! {
    /// `ferroflash_append_t`.
    AppendArgs: "append", from 184, size ferroflash_append_size {
        size: u64;
        /// Device addresses, multiples of 16: [tokens, heads, head_dim].
        k, v: *const c_void;
        k_cache: *mut c_void, "[pages, page, heads, head_dim]; a dense cache has one page per sequence";
        v_cache: *mut c_void, "the layout of k_cache";
        slots: *const c_void, "[tokens]: int32_t, or int64_t if wide_slots is 1";
        tokens, heads: i64;
        head_dim: i64, "a multiple of 8, or of 16 if the cache is e4m3 or int8";
        pages: i64;
        page: i64, "keys per page";
        k_strides: [i64; 2], "elements from one token and from one head to the next";
        v_strides: [i64; 2];
        /// Elements from one page, key and head to the next, in k_cache and in v_cache. {page * heads *
        /// head_dim, heads * head_dim, head_dim} is a contiguous [pages, page, heads, head_dim].
        cache_strides: [i64; 3];
        dtype: i32, "type of k and v";
        cache_dtype: i32, "dtype, _E4M3: x / scale, rounded to nearest even; _INT8 or _E4M3_SCALED";
        wide_slots: i32;
        k_scale: f32, "scale of keys in an e4m3 cache; 0 means 1";
        v_scale: f32, "scale of values in an e4m3 cache; 0 means 1";
        /// [heads] in device memory, instead of k_scale and v_scale; or NULL. int8 cache: [pages, page,
        /// heads]; the kernel writes a scale for each row of a head: the row's largest magnitude / 127. A row
        /// of zeros has the scale 0. A row with an infinity or a NaN has the scale NaN. NULL for a latent
        /// cache of _E4M3_SCALED, into whose rows the kernel writes the scales: the largest magnitude of 128
        /// columns / 448.
        k_scales, v_scales: *const f32;
        /// Columns of values in a latent cache (MLA), whose values are the first head_dim_v columns of its
        /// keys. v and v_cache must be NULL, and head_dim must be a multiple of 16. 0: no latent cache.
        head_dim_v: i64;
        /// Rotary embedding of k, and of q in the same launch: columns rotary_first to rotary_first +
        /// rotary_dims of each head rotate by the angles in row positions[token] of the table. The kernel
        /// clamps positions to the table. It computes in f32 and rounds each result to dtype, before it
        /// divides by the scale of an e4m3 cache. Cosines: [rotary_rows, rotary_dims / 2], a multiple of 16.
        /// NULL: nothing rotates.
        rotary_cos: *const c_void;
        /// The layout of rotary_cos. A table [rows][cosines, sines]: rotary_cos + rotary_dims / 2 elements.
        rotary_sin: *const c_void;
        positions: *const c_void, "[tokens]: int32_t, or int64_t if wide_positions is 1";
        q: *const c_void, "[tokens, heads_q, head_dim]; NULL: no queries rotate";
        rotated_q: *mut c_void, "[tokens, heads_q, head_dim]; q: in place";
        rotary_rows: i64, "positions of the table";
        rotary_dims: i64, "columns that rotate, a multiple of 16";
        rotary_stride: i64, "elements from one position to the next";
        rotary_first: i64, "first column that rotates, a multiple of 8";
        heads_q: i64;
        q_strides: [i64; 2], "elements from one token and from one head to the next";
        rotated_q_strides: [i64; 2];
        rotary_dtype: i32, "type of the table: dtype or FERROFLASH_F32";
        rotary_style: i32, "FERROFLASH_ROTARY_HALVES or _INTERLEAVED";
        wide_positions: i32;
        reserved: i32, "0";
    }
}

c_struct! {
    /// `ferroflash_state_t`.
    StateArgs: "state", from 72 {
        o: *const c_void, "[batch, seqlen, heads, head_dim], normalised";
        lse: *const f32, "[batch, heads, seqlen]";
        o_strides: [i64; 4];
        lse_strides: [i64; 3], "elements from one batch, head and row to the next";
    }
}

c_struct! {
    /// `ferroflash_merge_t`.
    MergeArgs: "merge", from 152, size ferroflash_merge_size {
        size: u64;
        states: *const StateArgs, "[count] in host memory; tensors at equal distances from state 1 on";
        count: u64, "1 or more";
        o: *mut c_void, "may be the o of a state";
        lse: *mut f32, "may be the lse of a state; NULL: not written";
        sinks: *const f32, "[heads] in device memory: attention sinks, one logit per head; or NULL";
        batch, seqlen, heads: i64;
        head_dim: i64, "a multiple of 8";
        o_strides: [i64; 4];
        lse_strides: [i64; 3], "elements from one batch, head and row to the next";
        states_dtype: i32, "type of the states' o";
        dtype: i32, "type of o: states_dtype; or F16 or BF16 if states_dtype is F32";
        states_lse_unit: i32, "FERROFLASH_LSE_NATURAL or _BASE_TWO: the states' lse";
        lse_unit: i32, "FERROFLASH_LSE_NATURAL or _BASE_TWO: the output lse";
        state_size: u64, "bytes from one state to the next; FERROFLASH_MERGE_INIT sets it";
    }
}
