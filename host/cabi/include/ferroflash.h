/* FerroFlash: fused attention for NVIDIA GPUs.
 *
 *   ferroflash_context_t *context;
 *   if (ferroflash_context_create(&context)) { puts(ferroflash_last_error()); ... }
 *   ferroflash_forward_t f = FERROFLASH_FORWARD_INIT;
 *   f.q = q; ...                                     // device pointers, sizes, strides
 *   ferroflash_forward(context, &f, stream);         // enqueues; waits for nothing
 *
 * Every function that can fail returns a ferroflash_status_t, and ferroflash_last_error() then says in words
 * what was wrong, per thread. No CUDA header is needed: streams are `CUstream` (or `cudaStream_t`) as
 * `void *`, tensors are device pointers.
 */
#ifndef FERROFLASH_H
#define FERROFLASH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface. Structs only ever grow at their end; their first field says how much of them the
 * caller knows. */
#define FERROFLASH_ABI_VERSION 1

typedef enum ferroflash_status {
    FERROFLASH_OK = 0,
    FERROFLASH_INVALID = 1,     /* the request contradicts itself, or an argument is NULL */
    FERROFLASH_UNSUPPORTED = 2, /* the request makes sense, but this library or this device cannot do it */
    FERROFLASH_DRIVER = 3,      /* there is no CUDA driver or no device, or the driver refused */
    FERROFLASH_INTERNAL = 4     /* a fault of this library */
} ferroflash_status_t;

/* Element types. Attention is FERROFLASH_F16 or FERROFLASH_BF16. */
enum {
    FERROFLASH_F16 = 0,
    FERROFLASH_BF16 = 1,
    FERROFLASH_E4M3 = 2, /* a cache's alone */
    FERROFLASH_F32 = 3   /* a partial state's alone */
};

/* Logarithms of log-sum-exps in ferroflash_merge_t. */
enum { FERROFLASH_LSE_NATURAL = 0, FERROFLASH_LSE_BASE_TWO = 1 };

/* Values of ferroflash_forward_t.mask. 2 is none: the other alignment of causal is FERROFLASH_TOP_LEFT. */
enum {
    FERROFLASH_MASK_FULL = 0,
    FERROFLASH_MASK_CAUSAL = 1, /* keys up to the query's own position */
    FERROFLASH_MASK_WINDOW = 3  /* window_left keys before the query's position to window_right behind it */
};

/* Values of ferroflash_forward_t.alignment: where queries stand among keys where their numbers differ. */
enum {
    FERROFLASH_BOTTOM_RIGHT = 0, /* the last query at the last key (FlashAttention) */
    FERROFLASH_TOP_LEFT = 1      /* the first query at the first key (PyTorch's is_causal) */
};

/* One forward attention: o = softmax(mask(softcap(scale * q k^T))) v. */
typedef struct ferroflash_forward {
    uint64_t size; /* sizeof(ferroflash_forward_t): FERROFLASH_FORWARD_INIT sets it */
    /* Device addresses, multiples of 16. q and o are [batch, seqlen_q, heads_q, head_dim], k and v
     * [batch, seqlen_k, heads_k, head_dim]. */
    const void *q;
    const void *k;
    const void *v;
    void *o;
    float *lse; /* log-sum-exp of each row, [batch, heads_q, seqlen_q], rows contiguous; NULL: not wanted */
    int64_t batch;
    int64_t seqlen_q;
    int64_t seqlen_k;
    int64_t heads_q; /* a multiple of heads_k */
    int64_t heads_k;
    int64_t head_dim; /* a multiple of 8, at most 512 */
    /* Elements from one batch, row, head and column to the next. Element [b, s, h, d] of q:
     *   q[b * q_strides[0] + s * q_strides[1] + h * q_strides[2] + d]
     * Any layout: {seqlen * heads * head_dim, heads * head_dim, head_dim, 1} is contiguous [batch, seqlen,
     * heads, head_dim], {heads * seqlen * head_dim, head_dim, seqlen * head_dim, 1} is [batch, heads, seqlen,
     * head_dim]. The last is 1, the others are multiples of 8; those of sizes of 1 are ignored. 0 repeats an
     * input; an output must not overlap itself. */
    int64_t q_strides[4];
    int64_t k_strides[4];
    int64_t v_strides[4];
    int64_t o_strides[4];
    int64_t lse_strides[2]; /* elements from one batch and from one head to the next */
    int32_t dtype;
    int32_t mask;
    int32_t window_left;  /* for FERROFLASH_MASK_WINDOW, inclusive; -1: unbounded */
    int32_t window_right; /* the same */
    float scale;          /* 0: 1 / sqrt(head_dim) */
    float softcap;        /* 0: none */
    const char *config;   /* name of the entry to run; NULL: the planner's choice */
    /* Device memory that the launch may use, a multiple of 16; NULL: none, and no kernel that needs one. */
    void *workspace;
    uint64_t workspace_bytes; /* its size: ferroflash_workspace_size says how much helps */
    int32_t alignment;
    /* Packed sequences, one behind the other in q, k, v and o of one batch: sequence b has rows
     * cu_seqlens_q[b] to before cu_seqlens_q[b + 1] of q and o, and those of k and v likewise. These are
     * device addresses of batch + 1 integers, read when the launch runs: a captured graph stays right when
     * they change. batch is then the number of sequences, seqlen_q and seqlen_k the most that one has; q and
     * o are [total_q, heads_q, head_dim], k and v [total_k, heads_k, head_dim], lse is [heads_q, total_q],
     * and the strides of batches are ignored. NULL: sequences of equal lengths. */
    const int32_t *cu_seqlens_q;
    const int32_t *cu_seqlens_k;
    const int32_t *seqused_k; /* [batch]: keys of each sequence that exist; NULL: all of its rows */
    int64_t total_q;
    int64_t total_k;
    /* ALiBi slopes of query heads, in device memory: a score becomes less by slope * |i + seqlen_k - seqlen_q
     * - j|, before the mask; with top-left alignment |i - j|. NULL: none. */
    const float *alibi_slopes;
    int64_t alibi_strides[2]; /* elements from one sequence and head to the next; 0: they share a slope */
} ferroflash_forward_t;

/* How a forward is launched. */
typedef struct ferroflash_plan_info {
    uint64_t size;     /* sizeof(ferroflash_plan_info_t): FERROFLASH_PLAN_INFO_INIT sets it */
    const char *entry; /* name of the kernel; lives as long as the library */
    const char *reason; /* why this one; lives as long as the plan */
    uint32_t grid[3];
    uint32_t block[3];
    uint64_t smem_bytes; /* dynamic shared memory of a block */
    uint64_t workspace_bytes; /* that a launch uses; 0: none */
    uint64_t counters_bytes;  /* that a launch uses where it is given some; 0: none */
} ferroflash_plan_info_t;

/* Every field, so that no compiler of C or C++ warns of a missing one. */
#define FERROFLASH_FORWARD_INIT { \
    sizeof(ferroflash_forward_t), NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, \
    {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0}, 0, 0, 0, 0, 0, 0, NULL, NULL, 0, 0, \
    NULL, NULL, NULL, 0, 0, NULL, {0, 0} }
#define FERROFLASH_PLAN_INFO_INIT { sizeof(ferroflash_plan_info_t), NULL, NULL, {0, 0, 0}, {0, 0, 0}, 0, 0, 0 }
#define FERROFLASH_APPEND_INIT { \
    sizeof(ferroflash_append_t), NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, \
    {0, 0}, {0, 0}, {0, 0, 0}, 0, 0, 0, 0, 0, NULL, NULL }
#define FERROFLASH_DECODE_INIT { \
    sizeof(ferroflash_decode_t), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0}, {0, 0}, \
    0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, 0, NULL, 0, NULL, 0, 0, 0, NULL, NULL, {0, 0}, NULL, {0, 0}, 0 }
#define FERROFLASH_MERGE_INIT { \
    sizeof(ferroflash_merge_t), NULL, 0, NULL, NULL, NULL, 0, 0, 0, 0, \
    {0, 0, 0, 0}, {0, 0, 0}, 0, 0, 0, 0, sizeof(ferroflash_state_t) }

/* Keys and values of new tokens go to their places in a cache (reshape_and_cache): token t to row
 * slots[t] % page of page slots[t] / page. A slot that is negative, or that the cache has not, is skipped. */
typedef struct ferroflash_append {
    uint64_t size; /* sizeof(ferroflash_append_t): FERROFLASH_APPEND_INIT sets it */
    /* Device addresses, multiples of 16: [tokens, heads, head_dim]. */
    const void *k;
    const void *v;
    /* The cache: [pages, page, heads, head_dim]; without pages, a page for each sequence. */
    void *k_cache;
    void *v_cache;
    const void *slots; /* one a token, int32_t, or int64_t where wide_slots is 1 */
    int64_t tokens;
    int64_t heads;
    int64_t head_dim; /* a multiple of 8, of 16 in an e4m3 cache */
    int64_t pages;
    int64_t page; /* keys of a page */
    int64_t k_strides[2]; /* elements from one token and from one head to the next */
    int64_t v_strides[2];
    /* Elements from one page, key and head to the next, of k_cache and of v_cache: {page * heads * head_dim,
     * heads * head_dim, head_dim} is contiguous [pages, page, heads, head_dim]. */
    int64_t cache_strides[3];
    int32_t dtype;       /* of k and v */
    int32_t cache_dtype; /* the same, or FERROFLASH_E4M3: then x / scale is stored, to nearest even */
    int32_t wide_slots;
    float k_scale;         /* of an e4m3 cache; 0: 1 */
    float v_scale;         /* the same */
    const float *k_scales; /* one scale a head in device memory, instead of k_scale; or NULL */
    const float *v_scales; /* the same */
} ferroflash_append_t;

/* What attention has made of some keys: o [batch, seqlen, heads, head_dim], normalised, and the log-sum-exp
 * of each row; infinite, with any o, for a row that has seen no key. */
typedef struct ferroflash_state {
    const void *o;
    const float *lse;
    int64_t o_strides[4];
    int64_t lse_strides[3]; /* elements from one batch, head and row to the next */
} ferroflash_state_t;

/* Merges states of the same queries and different keys: o = sum of exp(lse[i]) o[i] / sum of exp(lse[i]). */
typedef struct ferroflash_merge {
    uint64_t size; /* sizeof(ferroflash_merge_t): FERROFLASH_MERGE_INIT sets it */
    const ferroflash_state_t *states; /* in host memory; from the second on equally far apart */
    uint64_t count;                   /* 1 or more */
    void *o;            /* a state's own, or elsewhere */
    float *lse;         /* the same; NULL: not wanted */
    const float *sinks; /* a natural logit for each head that belongs to no key; or NULL */
    int64_t batch;
    int64_t seqlen;
    int64_t heads;
    int64_t head_dim; /* a multiple of 8 */
    int64_t o_strides[4];
    int64_t lse_strides[3]; /* elements from one batch, head and row to the next */
    int32_t states_dtype;
    int32_t dtype; /* of o: the states', or FERROFLASH_F16 or FERROFLASH_BF16 where that is FERROFLASH_F32 */
    int32_t states_lse_unit;
    int32_t lse_unit;
    uint64_t state_size; /* bytes from one state to the next: FERROFLASH_MERGE_INIT sets it */
} ferroflash_merge_t;

/* Attention on the keys and values of a cache, whose lengths and page numbers are the device's: a captured
 * graph stays right when they change. Up to 64 rows (seqlen_q * heads_q / heads_k) are decoded; more, packed
 * ones, and those with slopes are prefilled, without sinks, splits or e4m3.
 *
 *   ferroflash_decode_t d = FERROFLASH_DECODE_INIT;
 *   d.q = q; ...                                                        // device pointers, sizes, strides
 *   ferroflash_decode_room(context, &d, &d.workspace_bytes, &d.counters_bytes);
 *   d.workspace = ...; d.counters = ...;                                // that large; NULL where 0
 *   cuMemsetD8Async((CUdeviceptr)d.counters, 0, d.counters_bytes, stream);        // once
 *   ferroflash_decode(context, &d, stream);                             // each step
 */
typedef struct ferroflash_decode {
    uint64_t size; /* sizeof(ferroflash_decode_t): FERROFLASH_DECODE_INIT sets it */
    /* Device addresses, multiples of 16. q and o are [batch, seqlen_q, heads_q, head_dim], the last query at
     * its sequence's last key; the cache is [pages, page, heads_k, head_dim], without pages a page a
     * sequence. */
    const void *q;
    const void *k_cache;
    const void *v_cache;
    void *o;
    float *lse;         /* log-sum-exp of each row, [batch, heads_q, seqlen_q]; NULL: not wanted */
    const float *sinks; /* a natural logit for each query head that belongs to no key; or NULL */
    const int32_t *block_table;     /* [batch, columns]: the pages of each sequence; NULL: a page each */
    const int32_t *cache_batch_idx; /* without a table: the page of each; NULL: that of its own number */
    const int32_t *seqused_k;       /* [batch]: keys of each sequence, those of this step included */
    int64_t batch;
    int64_t seqlen_q;
    int64_t heads_q;
    int64_t heads_k;
    int64_t head_dim; /* a multiple of 8, of 16 with an e4m3 cache, at most 512 */
    int64_t pages;
    int64_t page; /* keys of a page: 1 or more */
    int64_t columns;
    int64_t table_stride; /* numbers from one row of block_table to the next */
    int64_t max_k;        /* most keys of a sequence; 0: as many as its pages hold */
    int64_t q_strides[4];
    int64_t o_strides[4];
    int64_t cache_strides[3]; /* elements from one page, key and head to the next, of keys and of values */
    int64_t lse_strides[2]; /* as in ferroflash_forward_t, like mask and windows */
    int32_t dtype;
    int32_t cache_dtype; /* the same, or FERROFLASH_E4M3 */
    int32_t mask;
    int32_t window_left;
    int32_t window_right;
    /* In so many parts are sequences cut, 2 or more with a workspace. 0: the library's choice. */
    int32_t splits;
    /* Instead: in parts of so many keys, a multiple of 128: results do not depend on the batch. Wants a
     * workspace. Or 0. */
    int32_t chunk;
    float scale;    /* 0: 1 / sqrt(head_dim) */
    float softcap;  /* 0: none */
    const char *config; /* name of the entry to run; NULL: the planner's choice */
    void *workspace;    /* memory that the launch may use, a multiple of 16; NULL: sequences stay whole */
    uint64_t workspace_bytes;
    /* Zeros, a multiple of 4, which the launch leaves as zeros: set them before the first launch and after
     * any error, and use them from one stream at a time. NULL: a second kernel merges. */
    void *counters;
    uint64_t counters_bytes;
    /* Packed sequences: as in ferroflash_forward_t. seqlen_q is then the most queries of one, and of any
     * number; q and o are [total_q, heads_q, head_dim], lse is [heads_q, total_q]. As many queries for each:
     * leave it out (NULL) and give q as [batch, seqlen_q, heads_q, head_dim], the same memory, which
     * decodes. */
    const int32_t *cu_seqlens_q;
    int64_t total_q;
    float k_scale;         /* of an e4m3 cache: a number of it stands for itself times the scale; 0: 1 */
    float v_scale;         /* the same */
    const float *k_scales; /* scales in device memory, [batch, heads_k], instead of k_scale; or NULL */
    const float *v_scales; /* the same */
    int64_t scales_strides[2]; /* elements from one sequence and head to the next; 0: they share a scale */
    const float *alibi_slopes; /* as in ferroflash_forward_t; with them head_dim is at most 256 */
    int64_t alibi_strides[2];
    int64_t total_k; /* most keys of all sequences together; 0: not known */
} ferroflash_decode_t;

/* A device with its loaded kernels. May be shared by threads. */
typedef struct ferroflash_context ferroflash_context_t;
/* A checked problem and its launch. May be shared by threads. */
typedef struct ferroflash_plan ferroflash_plan_t;
typedef struct ferroflash_decode_plan ferroflash_decode_plan_t;

/* What the library was built with: FERROFLASH_ABI_VERSION, its version in words, sizes of its structs. */
uint32_t ferroflash_abi_version(void);
const char *ferroflash_version(void);
size_t ferroflash_forward_size(void);
size_t ferroflash_plan_info_size(void);
size_t ferroflash_append_size(void);
size_t ferroflash_decode_size(void);
size_t ferroflash_merge_size(void);

/* What went wrong in this thread's last failing call; "" if none failed. Valid until the thread's next
 * failing call. */
const char *ferroflash_last_error(void);

/* Names of the compiled kernels. NULL from ferroflash_entry_count() on. */
size_t ferroflash_entry_count(void);
const char *ferroflash_entry_name(size_t index);

/* Adopts the CUDA context that is current on this thread; where there is none, the primary context of
 * device 0. It must outlive this one.
 *
 * Also reads what `ferroflash sweep` measured, which plans then prefer to the library's own table: the
 * file that the environment variable FERROFLASH_TUNING names, else ferroflash/tuning.json in the user's
 * cache folder where there is one ($XDG_CACHE_HOME, else ~/.cache). FERROFLASH_INVALID where the file
 * cannot be read or is no such file. A file may do without measurements of this device. */
ferroflash_status_t ferroflash_context_create(ferroflash_context_t **context);
void ferroflash_context_destroy(ferroflash_context_t *context);

/* Checks a forward and decides how it is launched. Touches no device. */
ferroflash_status_t ferroflash_plan_create(const ferroflash_context_t *context,
                                           const ferroflash_forward_t *forward, ferroflash_plan_t **plan);
void ferroflash_plan_destroy(ferroflash_plan_t *plan);
ferroflash_status_t ferroflash_plan_describe(const ferroflash_plan_t *plan, ferroflash_plan_info_t *info);
/* Bytes of workspace with which a forward runs fastest: several blocks then share the keys of few
 * queries. 0 where none helps. What its contents are means nothing before and after a launch; launches in
 * the order of one stream may share one. */
ferroflash_status_t ferroflash_workspace_size(const ferroflash_context_t *context,
                                              const ferroflash_forward_t *forward, uint64_t *bytes);

/* Loads the plan's kernels now rather than at its first launch: do it before capturing a graph. */
ferroflash_status_t ferroflash_load(const ferroflash_context_t *context, const ferroflash_plan_t *plan);

/* Enqueues on a CUstream of the context (NULL: the legacy default stream): no allocation, no synchronisation.
 * `forward` is the plan's problem, with the same or other tensors and workspace, which must stay until the
 * stream has run. */
ferroflash_status_t ferroflash_launch(const ferroflash_context_t *context, const ferroflash_plan_t *plan,
                                      const ferroflash_forward_t *forward, void *stream);

/* Plans and launches. */
ferroflash_status_t ferroflash_forward(const ferroflash_context_t *context,
                                       const ferroflash_forward_t *forward, void *stream);

/* Checks and enqueues an append, and a merge, likewise. The first call of each loads a kernel: do one before
 * capturing a graph. */
ferroflash_status_t ferroflash_append(const ferroflash_context_t *context, const ferroflash_append_t *append,
                                      void *stream);
ferroflash_status_t ferroflash_merge(const ferroflash_context_t *context, const ferroflash_merge_t *merge,
                                     void *stream);

/* Bytes of workspace and of counters with which a decode runs fastest; 0 where none help. */
ferroflash_status_t ferroflash_decode_room(const ferroflash_context_t *context,
                                           const ferroflash_decode_t *decode, uint64_t *workspace_bytes,
                                           uint64_t *counters_bytes);
/* Checks and enqueues a decode: no allocation, no synchronisation, once its kernels are loaded. */
ferroflash_status_t ferroflash_decode(const ferroflash_context_t *context, const ferroflash_decode_t *decode,
                                      void *stream);

/* The same in two steps: what is checked and chosen once may be launched for every layer and step. `decode`
 * is then the plan's problem, with the same or other tensors, workspace and counters. Load before capturing a
 * graph. A description is of the kernel that computes attention. */
ferroflash_status_t ferroflash_decode_plan_create(const ferroflash_context_t *context,
                                                  const ferroflash_decode_t *decode,
                                                  ferroflash_decode_plan_t **plan);
void ferroflash_decode_plan_destroy(ferroflash_decode_plan_t *plan);
ferroflash_status_t ferroflash_decode_plan_describe(const ferroflash_decode_plan_t *plan,
                                                    ferroflash_plan_info_t *info);
ferroflash_status_t ferroflash_decode_load(const ferroflash_context_t *context,
                                           const ferroflash_decode_plan_t *plan);
ferroflash_status_t ferroflash_decode_launch(const ferroflash_context_t *context,
                                             const ferroflash_decode_plan_t *plan,
                                             const ferroflash_decode_t *decode, void *stream);

#ifdef __cplusplus
}
#endif

#endif
