/* FerroFlash: fused attention for NVIDIA GPUs.
 *
 *   ferroflash_context_t *context;
 *   if (ferroflash_context_create(&context)) { puts(ferroflash_last_error()); ... }
 *   ferroflash_attention_t a = FERROFLASH_ATTENTION_INIT;
 *   a.q = q; ...                                     // device pointers, sizes, strides
 *   ferroflash_attention(context, &a, stream);       // enqueues the kernel and returns
 *
 * | to compute | function | struct |
 * |---|---|---|
 * | attention: on tensors, on varlen batches, on a KV cache | ferroflash_attention | ferroflash_attention_t |
 * | the gradients of an attention | ferroflash_backward | ferroflash_backward_t |
 * | an append of new keys and values to a KV cache | ferroflash_append | ferroflash_append_t |
 * | a merge of partial states | ferroflash_merge | ferroflash_merge_t |
 *
 * Streams are `CUstream` (or `cudaStream_t`) as `void *`. Tensors are device pointers. You need no CUDA
 * header.
 *
 * Each function that can fail returns a ferroflash_status_t. ferroflash_last_error() returns the reason in
 * words, for the calling thread. A function that creates a handle and fails sets the handle to NULL.
 */
#ifndef FERROFLASH_H
#define FERROFLASH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. Structs only grow, at their end. The first field of a struct holds the size
 * that the caller knows, so initialise each struct with its FERROFLASH_..._INIT macro. A program that was
 * compiled with an older header works with a newer library. */
#define FERROFLASH_ABI_VERSION 1

typedef enum ferroflash_status {
    FERROFLASH_OK = 0,
    FERROFLASH_INVALID = 1,     /* a field contradicts another field or a rule, or a pointer is NULL */
    FERROFLASH_UNSUPPORTED = 2, /* this library or this GPU does not support the request */
    FERROFLASH_DRIVER = 3,      /* the machine has no CUDA driver or no GPU, or the driver failed */
    FERROFLASH_INTERNAL = 4     /* a bug in this library */
} ferroflash_status_t;

/* Element types.
 *
 * | type | queries, keys, values, output | KV cache | partial state |
 * |---|---|---|---|
 * | FERROFLASH_F16, FERROFLASH_BF16 | yes | yes | yes |
 * | FERROFLASH_E4M3 | q, k and v in tensors on compute capability 9.0, with output_f16 | yes | no |
 * | FERROFLASH_INT8 | no | yes, with a scale for each row of a head | no |
 * | FERROFLASH_E4M3_SCALED | no | a latent cache (MLA), with FERROFLASH_BF16 queries | no |
 * | FERROFLASH_F32 | no | no | yes |
 *
 * A row of FERROFLASH_E4M3_SCALED has 656 bytes, for 576 columns: 512 e4m3, 4 f32, 64 bf16. The f32 number i
 * is the scale of e4m3 128 i to 128 i + 127. head_dim is 576, and strides of the cache count bytes.
 */
enum {
    FERROFLASH_F16 = 0,
    FERROFLASH_BF16 = 1,
    FERROFLASH_E4M3 = 2,
    FERROFLASH_INT8 = 4,
    FERROFLASH_F32 = 3,
    FERROFLASH_E4M3_SCALED = 5
};

/* Values of the fields `states_lse_unit` and `lse_unit`: the logarithm of log-sum-exps (LSE). */
enum { FERROFLASH_LSE_NATURAL = 0, FERROFLASH_LSE_BASE_TWO = 1 };

/* Values of the field `rotary_style`: the columns that rotate together. */
enum {
    FERROFLASH_ROTARY_HALVES = 0,     /* i and i + rotary_dims / 2 (GPT-NeoX, Llama) */
    FERROFLASH_ROTARY_INTERLEAVED = 1 /* 2 * i and 2 * i + 1 (GPT-J, DeepSeek) */
};

/* Values of the fields `mask`. The value 2 is not used. */
enum {
    FERROFLASH_MASK_FULL = 0,
    FERROFLASH_MASK_CAUSAL = 1, /* a query sees the keys up to its own position */
    FERROFLASH_MASK_WINDOW = 3, /* keys around the query's position: window_left, window_right */
    FERROFLASH_MASK_PREFIX = 4, /* causal, but every query also sees the sequence's first keys (prefix-LM) */
    FERROFLASH_MASK_CHUNKED = 5, /* causal, within chunks of mask_length positions (Llama 4) */
    FERROFLASH_MASK_BITS = 6    /* one bit per query and key: trees of drafts, or any mask */
};

/* Values of the field `alignment`: how queries align with keys if seqlen_q and seqlen_k differ. */
enum {
    FERROFLASH_BOTTOM_RIGHT = 0, /* the last query has the last key's position (FlashAttention) */
    FERROFLASH_TOP_LEFT = 1      /* the first query has the first key's position (PyTorch's is_causal) */
};

/* Values of the field `invariance`: what the bits of a sequence's result may depend on. */
enum {
    FERROFLASH_INVARIANCE_NONE = 0,            /* on the whole batch */
    FERROFLASH_INVARIANCE_BATCH = 1,           /* on the sequence's own tensors and lengths */
    FERROFLASH_INVARIANCE_BATCH_AND_CHUNKS = 2 /* as _BATCH, not on the division of queries among launches */
};

/* Values of the field `precision`: the precision of the products. */
enum {
    FERROFLASH_PRECISION_INPUTS = 0,   /* of the tensors' elements */
    FERROFLASH_PRECISION_INT8_FP8 = 1, /* scores of int8, outputs of e4m3 (8.9, or 10.0 and newer) */
    FERROFLASH_PRECISION_FP8 = 2,      /* scores and outputs of e4m3 (compute capability 9.0) */
    FERROFLASH_PRECISION_INT8_F16 = 3  /* scores of int8, outputs of the tensors' elements */
};

/* One attention: o = softmax(mask(softcap(scale * q k^T) - alibi + bias)) v. The layout
 * depends on the fields that are set:
 *
 * | | tensors | varlen | KV cache |
 * |---|---|---|---|
 * | selected by | neither of the next two | cu_seqlens_k | seqused_k without cu_seqlens_k |
 * | k, v: [.., heads_k, head_dim] | [batch, seqlen_k, ..] | [total_k, ..] | [pages, page, ..] |
 * | seqlen_k | keys per sequence | keys of the longest one | maximum per sequence; 0: its pages' capacity |
 * | total_k | ignored | rows of k and v | maximum keys of all sequences; 0: unknown |
 * | seqused_k | NULL | [batch]: valid keys; NULL: all rows | [batch]: keys, including this step's keys |
 * | cu_seqlens_k | NULL | [batch + 1] | NULL |
 * | cu_seqlens_q | NULL | [batch + 1] | [batch + 1], or NULL: equal numbers of queries |
 *
 * | | cu_seqlens_q is NULL | cu_seqlens_q is set |
 * |---|---|---|
 * | q, o | [batch, seqlen_q, heads_q, head_dim] | [total_q, heads_q, head_dim] |
 * | lse | [batch, heads_q, seqlen_q] | [heads_q, total_q] |
 * | seqlen_q | queries of each sequence | queries of the longest sequence |
 *
 * If seqlen_q is 1 and total_q is batch, every sequence has one query: cu_seqlens_q must be 0, 1, .. batch,
 * and kernels need not read it.
 *
 * cu_seqlens_q and cu_seqlens_k hold the first row of each sequence, and the end of the last sequence. The
 * batch stride of a tensor without a batch is ignored. A launch does not write rows of o and lse that belong
 * to no sequence. The kernel reads offsets, lengths and page indices when it runs, so a captured CUDA graph
 * stays valid if these integers change.
 *
 * | on a KV cache | decode kernels | prefill kernels |
 * |---|---|---|
 * | run for | up to 64 rows (seqlen_q * heads_q / heads_k) | more rows, varlen queries, or ALiBi slopes |
 * | splits, split_keys | yes | no |
 * | FERROFLASH_E4M3 | yes | yes, up to head_dim 256 |
 * | FERROFLASH_INT8 | up to head_dim 256 | yes, up to head_dim 256 |
 * | latent cache of FERROFLASH_E4M3 or FERROFLASH_E4M3_SCALED | yes | no |
 * | ALiBi slopes | no | yes, up to head_dim 256 |
 *
 * Varlen queries on a KV cache may be a mixed batch: one launch then runs a decode kernel on the sequences of
 * few queries and a prefill kernel on the others (docs/limits.md, "Mixed batches").
 *
 * On tensors, decode kernels also run for few queries on many keys, and for sinks. Decode kernels need a
 * workspace. Sinks need one too at head dims that have no kernel for sinks:
 *
 *   ferroflash_scratch_size(context, &a, &a.workspace_bytes, &a.counters_bytes);
 *   a.workspace = ...; a.counters = ...;                                   // of these sizes; NULL if 0
 *   cuMemsetD8Async((CUdeviceptr)a.counters, 0, a.counters_bytes, stream); // once */
typedef struct ferroflash_attention {
    uint64_t size; /* sizeof(ferroflash_attention_t); FERROFLASH_ATTENTION_INIT sets it */
    /* Device addresses, multiples of 16. */
    const void *q;
    const void *k;
    const void *v;
    void *o;
    float *lse; /* natural log-sum-exp of each row, contiguous for each head; NULL: not written */
    int64_t batch; /* number of sequences */
    int64_t seqlen_q;
    int64_t seqlen_k;
    int64_t heads_q; /* a multiple of heads_k */
    int64_t heads_k;
    int64_t head_dim; /* a multiple of 8 (e4m3 or int8 KV cache: 16), at most 512 (latent cache: 576) */
    /* Strides count elements from one batch, row, head or column to the next. Element [b, s, h, d]:
     *   q[b * q_strides[0] + s * q_strides[1] + h * q_strides[2] + d * q_strides[3]]
     *
     * | layout | strides |
     * |---|---|
     * | [batch, seqlen, heads, head_dim] | {seqlen * heads * head_dim, heads * head_dim, head_dim, 1} |
     * | [batch, heads, seqlen, head_dim] | {heads * seqlen * head_dim, head_dim, seqlen * head_dim, 1} |
     *
     * In a KV cache, pages are batches and keys are rows. Decode and append need equal strides of k and
     * v. The last stride is 1; the others are multiples of 16 bytes. The stride of a dimension of extent
     * 1 is ignored. An input may have a stride of 0. The rows of an output must not overlap. */
    int64_t q_strides[4];
    int64_t k_strides[4];
    int64_t v_strides[4];
    int64_t o_strides[4];
    int64_t lse_strides[2]; /* elements from one batch and from one head to the next */
    int32_t dtype; /* type of q and o; also of k and v, unless these are a KV cache */
    int32_t mask;
    int32_t window_left; /* FERROFLASH_MASK_WINDOW: keys before the position; -1: unbounded */
    int32_t window_right; /* FERROFLASH_MASK_WINDOW: keys after the position; -1: unbounded */
    int32_t alignment; /* must be FERROFLASH_BOTTOM_RIGHT on a KV cache */
    int32_t cache_dtype; /* type of a KV cache: dtype, _E4M3, _INT8 or _E4M3_SCALED; otherwise ignored */
    float scale; /* softmax scale, above 0; 0: 1 / sqrt(head_dim) */
    float softcap; /* a score becomes softcap * tanh(score / softcap); 0: off */
    const char *config; /* name of the kernel to run; NULL: the planner chooses */
    void *workspace; /* device address, a multiple of 16; NULL: no split-KV kernel runs */
    uint64_t workspace_bytes;
    /* Device address, a multiple of 4. The caller sets the counters to zero before the first launch, and
     * again after a launch that failed. A launch that succeeds leaves zeros. One stream at a time may
     * use the counters. NULL: a second kernel combines the splits. It also does if
     * ferroflash_scratch_size asks for 0 bytes. */
    void *counters;
    uint64_t counters_bytes;
    /* An older struct may end here. All following fields are optional: 0 or NULL turns a field off. */
    const int32_t *cu_seqlens_q;
    const int32_t *cu_seqlens_k;
    const int32_t *seqused_k;
    int64_t total_q; /* number of rows of q and o, if cu_seqlens_q is set */
    int64_t total_k;
    const int32_t *block_table; /* [batch, columns]: the pages of each sequence; NULL: a dense KV cache */
    const int32_t *cache_batch_idx; /* [batch]: pages of a dense cache; NULL: page b, or block_table */
    int64_t pages; /* number of pages; a dense KV cache has one page per sequence */
    int64_t page; /* keys per page */
    int64_t columns; /* page indices per sequence in block_table */
    /* integers from one row of block_table to the next: columns or more if batch > 1 */
    int64_t table_stride;
    int32_t splits; /* number of KV splits; 2 or more need a workspace; 0: the library chooses */
    /* Keys per KV split, a multiple of 128, instead of `splits`. Two splits need a workspace. 0: off. */
    int32_t split_keys;
    float k_scale; /* e4m3 KV cache: a key is the stored number times k_scale; 0 means 1 */
    float v_scale; /* e4m3 KV cache: a value is the stored number times v_scale; 0 means 1 */
    const float *k_scales; /* [batch, heads_k] in device memory, instead of k_scale; or NULL */
    const float *v_scales; /* [batch, heads_k] in device memory, instead of v_scale; or NULL */
    /* Elements, on an e4m3 KV cache from one sequence and from one head to the next; 0: shared. int8 KV
     * cache: k_scales and v_scales are [pages, page, heads_k], k_scale and v_scale are 0, and strides
     * are elements from one slot (row of a page) and from one head to the next; {0, 0}: contiguous. */
    int64_t scales_strides[2];
    const float *sinks; /* [heads_q]: attention sinks, one logit per query head; or NULL */
    /* ALiBi slopes of the query heads, in device memory. The kernel subtracts slope * |i + seqlen_k -
     * seqlen_q - j| (FERROFLASH_TOP_LEFT: slope * |i - j|) from the score of query i and key j, before
     * the mask. NULL: off. */
    const float *alibi_slopes;
    int64_t alibi_strides[2]; /* elements from one sequence and from one head to the next; 0: shared */
    /* Device address of a bias, a multiple of 4. The kernel adds element [b, h, i, j] to the scaled and
     * capped score of query i and key j of sequence b; query 0 and key 0 are the first of the sequence.
     * A row has seqlen_k elements, or on a KV cache the maximum number of keys per sequence. If a row
     * has an odd number of 16-bit elements, memory has one more element per row. NULL: off. */
    const void *bias;
    /* Elements from one sequence, head and query to the next; each is a multiple of 4 bytes. 0: shared. */
    int64_t bias_strides[3];
    /* For FERROFLASH_MASK_PREFIX, in device memory: [batch], the number of keys of each prefix. NULL:
     * every prefix has mask_length keys. */
    const int32_t *prefix_lengths;
    /* For FERROFLASH_MASK_BITS, in device memory. Bit j of row [b, h, i] is 1 if query i of sequence b
     * sees key max(n - mask_bits_keys, 0) + j of the sequence's n keys. The least significant bit comes
     * first. The query sees all earlier keys. */
    const uint8_t *mask_bits;
    int64_t mask_bits_strides[3]; /* bytes from one sequence, head and query to the next; 0: shared */
    int64_t mask_bits_keys; /* number of bits per query; 0: seqlen_k */
    int32_t bias_dtype; /* FERROFLASH_F16, _BF16 or _F32 */
    int32_t mask_length; /* _MASK_PREFIX: keys of every prefix; _MASK_CHUNKED: positions per chunk */
    /* Columns of v and o: a multiple of 8, at most 512. 0 means head_dim columns. On a KV cache without
     * v (NULL), a head_dim_v above 0 means a latent cache (MLA): its values are the first head_dim_v
     * columns of its keys, and scale must not be 0. */
    int64_t head_dim_v;
    /* Groups of consecutive sequences share their first pages in block_table (cascade attention). If
     * that pays, a launch reads these pages once for all queries of a group. [batch] in device memory:
     * the keys of each sequence behind its shared pages. Every sequence's seqused_k must have at least
     * the keys of these pages, also if the sequence only pads the batch of a captured graph. NULL: off;
     * prefix_groups and prefix_pages must be 0. */
    const int32_t *rest_lengths;
    int64_t prefix_groups; /* number of groups of equal numbers of sequences; 0 means 1 */
    int64_t prefix_pages; /* number of pages that the sequences of a group share */
    /* The largest score of each row, as the softmax sees it: scaled, after softcap, slopes and bias,
     * before sinks; -inf for a row that sees no key. Kernels for dense tensors write it, and
     * Hopper's for varlen tensors of head dim 128; on other tensors and beside `entropy`, kernels of
     * statistics do, which run behind the attention. NULL: not written. All outputs of rows have equal
     * strides. */
    float *max_logits;
    int64_t max_logits_strides[2]; /* elements from one batch and from one head to the next */
    /* Lists of keys of a latent cache (sparse MLA), [batch, heads_k, topk] in device memory, contiguous:
     * query b sees the slots of its list, and no other key. A slot is page * keys per page + row. A slot
     * that stands twice counts twice; the kernel skips a slot that is negative or beyond all pages.
     * batch is the number of queries of all sequences, seqlen_q is 1, and mask is
     * FERROFLASH_MASK_FULL. seqused_k, block_table and cache_batch_idx are NULL; seqlen_k, total_k,
     * columns and table_stride are 0. NULL: off. */
    const int32_t *indices;
    int64_t topk; /* number of slots in each list; 0 without indices */
    /* The entropy of each row's probabilities over keys, in nats, without the weight of sinks; 0 for a
     * row that sees no key. A kernel of statistics writes it. NULL: not written. */
    float *entropy;
    int64_t entropy_strides[2]; /* elements from one batch and from one head to the next */
    /* This field limits what a result's bits depend on: FERROFLASH_INVARIANCE_NONE, _BATCH or
     * _BATCH_AND_CHUNKS. */
    int32_t invariance;
    /* The precision of the products: FERROFLASH_PRECISION_INPUTS, _INT8_F16, _INT8_FP8 or _FP8. The
     * other ones than _INPUTS are less accurate, faster in long prefill, and need a workspace. */
    int32_t precision;
    /* [batch] in device memory, beside cu_seqlens_q: the number of used rows of each sequence. The last
     * one aligns with the last key. Rows behind it are padding: they get o = 0 and lse = -inf, or the
     * sink. A launch needs a workspace. NULL: every row is used. */
    const int32_t *seqused_q;
    /* [heads_q] in device memory: the largest of all rows' max_logits of each query head; -inf for a
     * head whose rows see no key. Without max_logits, a launch needs a workspace. NULL: not written. */
    float *max_logits_head;
    /* For tensors q, k, v of FERROFLASH_E4M3: a number of q is the stored number times the scale of its
     * sequence and key head, [batch, heads_k] in device memory. k_descale and v_descale likewise. Such a
     * launch has the precision _FP8 and needs a workspace. NULL: scales of 1. */
    const float *q_descale;
    const float *k_descale;
    const float *v_descale;
    int64_t q_descale_strides[2]; /* elements from one sequence and from one head to the next; 0: shared */
    int64_t k_descale_strides[2];
    int64_t v_descale_strides[2];
    int32_t output_f16; /* o of q, k and v of FERROFLASH_E4M3 is 0: bf16, 1: f16; otherwise 0 */
} ferroflash_attention_t;

/* Describes the launches of a plan. */
typedef struct ferroflash_plan_info {
    uint64_t size; /* sizeof(ferroflash_plan_info_t); FERROFLASH_PLAN_INFO_INIT sets it */
    const char *entry; /* name of the attention kernel; valid as long as the library is loaded */
    const char *reason; /* why the planner chose it; valid as long as the plan lives */
    uint32_t grid[3]; /* thread blocks */
    uint32_t block[3]; /* threads per block */
    uint64_t smem_bytes; /* dynamic shared memory per block */
    uint64_t workspace_bytes; /* bytes of workspace that each launch uses; 0: none */
    uint64_t counters_bytes; /* bytes of counters that a launch uses if it gets counters; 0: none */
} ferroflash_plan_info_t;

/* The backward pass of an attention: the gradients of q, k and v. A repeated launch gives identical bits. The
 * kernels write all rows of all three gradients that belong to a sequence. No gradient may overlap another
 * tensor. Only a library that was built with the feature `training` has the kernels; docs/limits.md,
 * "Backward", lists the attentions.
 *
 *   forward.lse = lse; ferroflash_attention(context, &forward, stream);
 *   ferroflash_backward_t b = FERROFLASH_BACKWARD_INIT;
 *   b.forward = &forward; b.d_o = d_o; ...           // device pointers and strides
 *   ferroflash_backward_plan_create(context, &b, &plan);
 *   ferroflash_plan_describe(plan, &info);           // info.workspace_bytes: allocate them once
 *   b.workspace = ...; b.workspace_bytes = info.workspace_bytes;
 *   ferroflash_backward_launch(context, plan, &b, stream); */
typedef struct ferroflash_backward {
    uint64_t size; /* sizeof(ferroflash_backward_t); FERROFLASH_BACKWARD_INIT sets it */
    /* The attention, in host memory. Its launch has written o and lse; both are inputs here, and lse
     * must not be NULL. Its workspace, counters, splits, split_keys and config are ignored. */
    const ferroflash_attention_t *forward;
    const void *d_o; /* the gradient of o, of o's shape */
    void *dq; /* output: the gradient of q, of q's shape */
    void *dk; /* output: the gradient of k, of k's shape */
    void *dv; /* output: the gradient of v, of v's shape */
    int64_t d_o_strides[4];
    int64_t dq_strides[4];
    int64_t dk_strides[4];
    int64_t dv_strides[4];
    const float *d_lse; /* the gradient of lse, contiguous for each head; NULL: zeros */
    int64_t d_lse_strides[2]; /* elements from one batch and from one head to the next */
    void *workspace; /* device address, a multiple of 16; plans may lack it, launches need it */
    uint64_t workspace_bytes; /* at least workspace_bytes of the plan's ferroflash_plan_info_t */
    float *dsinks; /* output, [heads_q]: the gradient of the forward's sinks; NULL: not written */
    /* Output, a multiple of 4: the gradient of the forward's bias, of bias_dtype. Where a stride of the
     * bias is 0, the gradient is the sum over sequences or heads, and its stride is ignored. A row of an
     * odd number of 16-bit elements has one more element in memory, which becomes 0. NULL: not written. */
    void *dbias;
    int64_t dbias_strides[3]; /* elements from one sequence, head and row to the next, multiples of 4 bytes */
} ferroflash_backward_t;

/* These macros name every field, so no C or C++ compiler warns of a missing field. */
#define FERROFLASH_ATTENTION_INIT { \
    sizeof(ferroflash_attention_t), NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, {0, 0, 0, 0}, \
    {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0}, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, 0, NULL, 0, \
    NULL, NULL, NULL, 0, 0, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, {0, 0}, NULL, NULL, {0, 0}, \
    NULL, {0, 0, 0}, NULL, NULL, {0, 0, 0}, 0, 0, 0, 0, NULL, 0, 0, NULL, {0, 0}, NULL, 0, NULL, {0, 0}, \
    0, 0, NULL, NULL, NULL, NULL, NULL, {0, 0}, {0, 0}, {0, 0}, 0 }
#define FERROFLASH_PLAN_INFO_INIT { \
    sizeof(ferroflash_plan_info_t), NULL, NULL, {0, 0, 0}, {0, 0, 0}, 0, 0, 0 }
#define FERROFLASH_BACKWARD_INIT { \
    sizeof(ferroflash_backward_t), NULL, NULL, NULL, NULL, NULL, {0, 0, 0, 0}, {0, 0, 0, 0}, \
    {0, 0, 0, 0}, {0, 0, 0, 0}, NULL, {0, 0}, NULL, 0, NULL, NULL, {0, 0, 0} }
#define FERROFLASH_APPEND_INIT { \
    sizeof(ferroflash_append_t), NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, {0, 0}, {0, 0}, {0, 0, 0}, \
    0, 0, 0, 0, 0, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, {0, 0}, {0, 0}, 0, 0, 0, \
    0 }
#define FERROFLASH_MERGE_INIT { \
    sizeof(ferroflash_merge_t), NULL, 0, NULL, NULL, NULL, 0, 0, 0, 0, {0, 0, 0, 0}, {0, 0, 0}, 0, 0, 0, \
    0, sizeof(ferroflash_state_t) }

/* Writes the keys and values of new tokens to a KV cache (reshape_and_cache). Token t goes to row
 * slots[t] % page of page slots[t] / page. The kernel skips a token whose slot is negative or behind
 * the end of the cache. */
typedef struct ferroflash_append {
    uint64_t size; /* sizeof(ferroflash_append_t); FERROFLASH_APPEND_INIT sets it */
    /* Device addresses, multiples of 16: [tokens, heads, head_dim]. */
    const void *k;
    const void *v;
    void *k_cache; /* [pages, page, heads, head_dim]; a dense cache has one page per sequence */
    void *v_cache; /* the layout of k_cache */
    const void *slots; /* [tokens]: int32_t, or int64_t if wide_slots is 1 */
    int64_t tokens;
    int64_t heads;
    int64_t head_dim; /* a multiple of 8, or of 16 if the cache is e4m3 or int8 */
    int64_t pages;
    int64_t page; /* keys per page */
    int64_t k_strides[2]; /* elements from one token and from one head to the next */
    int64_t v_strides[2];
    /* Elements from one page, key and head to the next, in k_cache and in v_cache. {page * heads *
     * head_dim, heads * head_dim, head_dim} is a contiguous [pages, page, heads, head_dim]. */
    int64_t cache_strides[3];
    int32_t dtype; /* type of k and v */
    int32_t cache_dtype; /* dtype, _E4M3: x / scale, rounded to nearest even; _INT8 or _E4M3_SCALED */
    int32_t wide_slots;
    float k_scale; /* scale of keys in an e4m3 cache; 0 means 1 */
    float v_scale; /* scale of values in an e4m3 cache; 0 means 1 */
    /* [heads] in device memory, instead of k_scale and v_scale; or NULL. int8 cache: [pages, page,
     * heads]; the kernel writes a scale for each row of a head: the row's largest magnitude / 127. A row
     * of zeros has the scale 0. A row with an infinity or a NaN has the scale NaN. NULL for a latent
     * cache of _E4M3_SCALED, into whose rows the kernel writes the scales: the largest magnitude of 128
     * columns / 448. */
    const float *k_scales;
    const float *v_scales;
    /* Columns of values in a latent cache (MLA), whose values are the first head_dim_v columns of its
     * keys. v and v_cache must be NULL, and head_dim must be a multiple of 16. 0: no latent cache. */
    int64_t head_dim_v;
    /* Rotary embedding of k, and of q in the same launch: columns rotary_first to rotary_first +
     * rotary_dims of each head rotate by the angles in row positions[token] of the table. The kernel
     * clamps positions to the table. It computes in f32 and rounds each result to dtype, before it
     * divides by the scale of an e4m3 cache. Cosines: [rotary_rows, rotary_dims / 2], a multiple of 16.
     * NULL: nothing rotates. */
    const void *rotary_cos;
    /* The layout of rotary_cos. A table [rows][cosines, sines]: rotary_cos + rotary_dims / 2 elements. */
    const void *rotary_sin;
    const void *positions; /* [tokens]: int32_t, or int64_t if wide_positions is 1 */
    const void *q; /* [tokens, heads_q, head_dim]; NULL: no queries rotate */
    void *rotated_q; /* [tokens, heads_q, head_dim]; q: in place */
    int64_t rotary_rows; /* positions of the table */
    int64_t rotary_dims; /* columns that rotate, a multiple of 16 */
    int64_t rotary_stride; /* elements from one position to the next */
    int64_t rotary_first; /* first column that rotates, a multiple of 8 */
    int64_t heads_q;
    int64_t q_strides[2]; /* elements from one token and from one head to the next */
    int64_t rotated_q_strides[2];
    int32_t rotary_dtype; /* type of the table: dtype or FERROFLASH_F32 */
    int32_t rotary_style; /* FERROFLASH_ROTARY_HALVES or _INTERLEAVED */
    int32_t wide_positions;
    int32_t reserved; /* 0 */
} ferroflash_append_t;

/* A partial state: the result of attention over some of the keys. A row that saw no key has an infinite lse;
 * its o is ignored. */
typedef struct ferroflash_state {
    const void *o; /* [batch, seqlen, heads, head_dim], normalised */
    const float *lse; /* [batch, heads, seqlen] */
    int64_t o_strides[4];
    int64_t lse_strides[3]; /* elements from one batch, head and row to the next */
} ferroflash_state_t;

/* Merges partial states that have the same queries and different keys (merge_attn_states):
 * o = sum of exp(lse[i]) o[i] / sum of exp(lse[i]). */
typedef struct ferroflash_merge {
    uint64_t size; /* sizeof(ferroflash_merge_t); FERROFLASH_MERGE_INIT sets it */
    const ferroflash_state_t *states; /* [count] in host memory; tensors at equal distances from state 1 on */
    uint64_t count; /* 1 or more */
    void *o; /* may be the o of a state */
    float *lse; /* may be the lse of a state; NULL: not written */
    const float *sinks; /* [heads] in device memory: attention sinks, one logit per head; or NULL */
    int64_t batch;
    int64_t seqlen;
    int64_t heads;
    int64_t head_dim; /* a multiple of 8 */
    int64_t o_strides[4];
    int64_t lse_strides[3]; /* elements from one batch, head and row to the next */
    int32_t states_dtype; /* type of the states' o */
    int32_t dtype; /* type of o: states_dtype; or F16 or BF16 if states_dtype is F32 */
    int32_t states_lse_unit; /* FERROFLASH_LSE_NATURAL or _BASE_TWO: the states' lse */
    int32_t lse_unit; /* FERROFLASH_LSE_NATURAL or _BASE_TWO: the output lse */
    uint64_t state_size; /* bytes from one state to the next; FERROFLASH_MERGE_INIT sets it */
} ferroflash_merge_t;

/* A GPU with its loaded kernels. Threads may share a context. */
typedef struct ferroflash_context ferroflash_context_t;
/* A validated request and its launch. Threads may share a plan. */
typedef struct ferroflash_plan ferroflash_plan_t;

/* Return FERROFLASH_ABI_VERSION of the library, its version as text, and the sizes of its structs. */
uint32_t ferroflash_abi_version(void);
const char *ferroflash_version(void);
size_t ferroflash_attention_size(void);
size_t ferroflash_plan_info_size(void);
size_t ferroflash_backward_size(void);
size_t ferroflash_append_size(void);
size_t ferroflash_merge_size(void);

/* Returns the error of this thread's last failed call; "" if no call failed. The text is valid
 * until the thread's next failed call. */
const char *ferroflash_last_error(void);

/* Return the number of compiled kernels, and the name of a kernel. ferroflash_entry_name returns NULL if
 * index >= ferroflash_entry_count(). */
size_t ferroflash_entry_count(void);
const char *ferroflash_entry_name(size_t index);

/* Creates a context on the CUDA context that is current on this thread, or on the primary context of device 0
 * if no context is current. The CUDA context must outlive the new context.
 *
 * The function also reads the tuning file that `ferroflash sweep` wrote. The planner prefers the file's
 * measurements to the library's selection table.
 *
 * | FERROFLASH_TUNING | tuning file |
 * |---|---|
 * | a path | this file; FERROFLASH_INVALID if it cannot be read or is no tuning file |
 * | unset or empty | ferroflash/tuning.json in $XDG_CACHE_HOME or ~/.cache, if it exists |
 */
ferroflash_status_t ferroflash_context_create(ferroflash_context_t **context);
void ferroflash_context_destroy(ferroflash_context_t *context);

/* Creates a context that plans for a common card, without a GPU: "h100", "h200", "a100", "l4" and others.
 * Functions that load or launch return FERROFLASH_INVALID. Reads the tuning file, too. */
ferroflash_status_t ferroflash_context_create_profile(const char *profile, ferroflash_context_t **context);

/* Creates a context on a simulated card: "h100", "h200", "a100", "l4" and others. A launch interprets the
 * kernels' PTX on the CPU and checks every access. It has ended when its function returns; streams are
 * ignored. A finding of the checks is FERROFLASH_DRIVER. Addresses are the simulated card's, so the next four
 * functions allocate, free and copy memory there; `address` of a copy may lie within an allocation.
 * FERROFLASH_UNSUPPORTED: the library was built without the feature `sim`. */
ferroflash_status_t ferroflash_context_create_simulator(const char *profile, ferroflash_context_t **context);
ferroflash_status_t ferroflash_simulator_allocate(const ferroflash_context_t *context, uint64_t bytes,
                                                  uint64_t *address);
ferroflash_status_t ferroflash_simulator_free(const ferroflash_context_t *context, uint64_t address);
ferroflash_status_t ferroflash_simulator_write(const ferroflash_context_t *context, uint64_t address,
                                               const void *data, uint64_t bytes);
ferroflash_status_t ferroflash_simulator_read(const ferroflash_context_t *context, uint64_t address,
                                              void *data, uint64_t bytes);

/* Validates a request and chooses its kernel. Does not call the driver. */
ferroflash_status_t ferroflash_plan_create(const ferroflash_context_t *context,
                                           const ferroflash_attention_t *attention,
                                           ferroflash_plan_t **plan);
void ferroflash_plan_destroy(ferroflash_plan_t *plan);
ferroflash_status_t ferroflash_plan_describe(const ferroflash_plan_t *plan, ferroflash_plan_info_t *info);
/* Writes the sizes in bytes of the workspace and of the counters that the fastest kernel for a request needs;
 * 0: none. The contents of a workspace have no meaning before and after a launch. The launches of one stream
 * may share a workspace. */
ferroflash_status_t ferroflash_scratch_size(const ferroflash_context_t *context,
                                            const ferroflash_attention_t *attention,
                                            uint64_t *workspace_bytes, uint64_t *counters_bytes);

/* Loads the kernels of a plan. Without this call, the first launch loads them. Call this function before you
 * capture a graph. */
ferroflash_status_t ferroflash_load(const ferroflash_context_t *context, const ferroflash_plan_t *plan);

/* Enqueues a plan on a CUstream of the context (NULL: the legacy default stream). Allocates nothing and does
 * not synchronise. `attention` must be the plan's request, but may have other tensors, workspace and
 * counters. One plan therefore serves every layer and every step. The memory must live until the launch has
 * run. */
ferroflash_status_t ferroflash_launch(const ferroflash_context_t *context, const ferroflash_plan_t *plan,
                                      const ferroflash_attention_t *attention, void *stream);

/* Plans and launches a request. Once the kernels are loaded, this function allocates nothing and does not
 * synchronise. */
ferroflash_status_t ferroflash_attention(const ferroflash_context_t *context,
                                         const ferroflash_attention_t *attention, void *stream);

/* Like ferroflash_plan_create, ferroflash_launch and ferroflash_attention, for the backward pass.
 * ferroflash_plan_describe, ferroflash_load and ferroflash_plan_destroy take these plans, too. */
ferroflash_status_t ferroflash_backward_plan_create(const ferroflash_context_t *context,
                                                    const ferroflash_backward_t *backward,
                                                    ferroflash_plan_t **plan);
ferroflash_status_t ferroflash_backward_launch(const ferroflash_context_t *context,
                                               const ferroflash_plan_t *plan,
                                               const ferroflash_backward_t *backward, void *stream);
ferroflash_status_t ferroflash_backward(const ferroflash_context_t *context,
                                        const ferroflash_backward_t *backward, void *stream);

/* Plan and launch an append or a merge. The first call of each function loads a kernel, so call the function
 * once before you capture a graph. */
ferroflash_status_t ferroflash_append(const ferroflash_context_t *context, const ferroflash_append_t *append,
                                      void *stream);
ferroflash_status_t ferroflash_merge(const ferroflash_context_t *context, const ferroflash_merge_t *merge,
                                     void *stream);

#ifdef __cplusplus
}
#endif

#endif
