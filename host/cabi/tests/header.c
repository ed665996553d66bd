/* What a C program sees of ferroflash.h. The test gives sizes and offsets as the library has them. */
#include "ferroflash.h"

#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(ferroflash_forward_t) == FORWARD_SIZE, "ferroflash_forward_t");
_Static_assert(offsetof(ferroflash_forward_t, lse) == OFFSET_LSE, "lse");
_Static_assert(offsetof(ferroflash_forward_t, q_strides) == OFFSET_Q_STRIDES, "q_strides");
_Static_assert(offsetof(ferroflash_forward_t, lse_strides) == OFFSET_LSE_STRIDES, "lse_strides");
_Static_assert(offsetof(ferroflash_forward_t, dtype) == OFFSET_DTYPE, "dtype");
_Static_assert(offsetof(ferroflash_forward_t, scale) == OFFSET_SCALE, "scale");
_Static_assert(offsetof(ferroflash_forward_t, config) == OFFSET_CONFIG, "config");
_Static_assert(offsetof(ferroflash_forward_t, workspace) == OFFSET_WORKSPACE, "workspace");
_Static_assert(offsetof(ferroflash_forward_t, cu_seqlens_q) == OFFSET_CU_SEQLENS_Q, "cu_seqlens_q");
_Static_assert(offsetof(ferroflash_forward_t, total_k) == OFFSET_TOTAL_K, "total_k");
_Static_assert(offsetof(ferroflash_forward_t, alibi_strides) == OFFSET_ALIBI_STRIDES, "alibi_strides");
_Static_assert(sizeof(ferroflash_plan_info_t) == PLAN_INFO_SIZE, "ferroflash_plan_info_t");
_Static_assert(offsetof(ferroflash_plan_info_t, grid) == OFFSET_GRID, "grid");
_Static_assert(offsetof(ferroflash_plan_info_t, smem_bytes) == OFFSET_SMEM_BYTES, "smem_bytes");
_Static_assert(offsetof(ferroflash_plan_info_t, counters_bytes) == OFFSET_COUNTERS_BYTES, "counters_bytes");
_Static_assert(sizeof(ferroflash_status_t) == 4, "ferroflash_status_t");
_Static_assert(sizeof(ferroflash_append_t) == APPEND_SIZE, "ferroflash_append_t");
_Static_assert(offsetof(ferroflash_append_t, cache_strides) == OFFSET_CACHE_STRIDES, "cache_strides");
_Static_assert(offsetof(ferroflash_append_t, v_scales) == OFFSET_V_SCALES, "v_scales");
_Static_assert(sizeof(ferroflash_merge_t) == MERGE_SIZE, "ferroflash_merge_t");
_Static_assert(offsetof(ferroflash_merge_t, sinks) == OFFSET_SINKS, "sinks");
_Static_assert(offsetof(ferroflash_merge_t, lse_unit) == OFFSET_LSE_UNIT, "lse_unit");
_Static_assert(sizeof(ferroflash_decode_t) == DECODE_SIZE, "ferroflash_decode_t");
_Static_assert(offsetof(ferroflash_decode_t, seqused_k) == OFFSET_SEQUSED_K, "seqused_k");
_Static_assert(offsetof(ferroflash_decode_t, lse_strides) == OFFSET_DECODE_LSE_STRIDES, "lse_strides");
_Static_assert(offsetof(ferroflash_decode_t, softcap) == OFFSET_DECODE_SOFTCAP, "softcap");
_Static_assert(offsetof(ferroflash_decode_t, counters) == OFFSET_COUNTERS, "counters");
_Static_assert(offsetof(ferroflash_decode_t, total_q) == OFFSET_DECODE_TOTAL_Q, "total_q");
_Static_assert(offsetof(ferroflash_decode_t, scales_strides) == OFFSET_SCALES_STRIDES, "scales_strides");
_Static_assert(offsetof(ferroflash_decode_t, alibi_slopes) == OFFSET_DECODE_ALIBI_SLOPES, "alibi_slopes");
_Static_assert(offsetof(ferroflash_decode_t, total_k) == OFFSET_DECODE_TOTAL_K, "total_k");
_Static_assert(offsetof(ferroflash_merge_t, state_size) == OFFSET_STATE_SIZE, "state_size");
_Static_assert(sizeof(ferroflash_state_t) == STATE_SIZE, "ferroflash_state_t");

static int failures = 0;

static void expect(int holds, const char *what) {
    if (!holds) {
        failures++;
        printf("FAILED: %s (last error: %s)\n", what, ferroflash_last_error());
    }
}

static int said(const char *words) { return strstr(ferroflash_last_error(), words) != NULL; }

int main(void) {
    ferroflash_context_t *context = NULL;
    ferroflash_plan_t *plan = NULL;
    ferroflash_forward_t forward = FERROFLASH_FORWARD_INIT;
    ferroflash_plan_info_t info = FERROFLASH_PLAN_INFO_INIT;

    expect(ferroflash_abi_version() == FERROFLASH_ABI_VERSION, "version of the interface");
    expect(strcmp(ferroflash_version(), VERSION) == 0, "version of the library");
    expect(ferroflash_forward_size() == sizeof forward && ferroflash_plan_info_size() == sizeof info,
           "sizes");
    expect(strcmp(ferroflash_last_error(), "") == 0, "no error yet");
    expect(ferroflash_entry_count() > 0 && strncmp(ferroflash_entry_name(0), "fwd_", 4) == 0, "entries");
    expect(ferroflash_entry_name(ferroflash_entry_count()) == NULL, "no entry behind the last");

    expect(ferroflash_context_create(NULL) == FERROFLASH_INVALID && said("context: NULL"),
           "no place for a context");
    expect(ferroflash_plan_create(NULL, &forward, &plan) == FERROFLASH_INVALID && said("context: NULL"),
           "no context");
    expect(ferroflash_forward(NULL, NULL, NULL) == FERROFLASH_INVALID && said("NULL"), "nothing at all");
    expect(ferroflash_plan_describe(NULL, &info) == FERROFLASH_INVALID && said("plan: NULL"), "no plan");
    ferroflash_append_t append = FERROFLASH_APPEND_INIT;
    ferroflash_merge_t merge = FERROFLASH_MERGE_INIT;
    expect(ferroflash_append_size() == sizeof append && ferroflash_merge_size() == sizeof merge, "sizes");
    expect(ferroflash_append(NULL, &append, NULL) == FERROFLASH_INVALID && said("context: NULL"), "append");
    expect(ferroflash_merge(NULL, &merge, NULL) == FERROFLASH_INVALID && said("context: NULL"), "merge");
    ferroflash_decode_t decode = FERROFLASH_DECODE_INIT;
    expect(ferroflash_decode(NULL, &decode, NULL) == FERROFLASH_INVALID && said("context: NULL"), "decode");
    expect(ferroflash_decode_size() == sizeof decode, "size of a decode");
    ferroflash_decode_plan_t *decode_plan = NULL;
    expect(ferroflash_decode_plan_create(NULL, &decode, &decode_plan) == FERROFLASH_INVALID
           && said("context: NULL"), "plan of a decode");
    expect(ferroflash_decode_plan_describe(NULL, &info) == FERROFLASH_INVALID && said("plan: NULL"),
           "no plan of a decode");
    expect(ferroflash_decode_launch(NULL, NULL, &decode, NULL) == FERROFLASH_INVALID
           && ferroflash_decode_load(NULL, NULL) == FERROFLASH_INVALID, "nothing to launch");
    ferroflash_decode_plan_destroy(NULL);
    ferroflash_context_destroy(NULL);
    ferroflash_plan_destroy(NULL);

    ferroflash_status_t status = ferroflash_context_create(&context);
    printf("context: %d\n%s\n", status, ferroflash_last_error());
    if (status == FERROFLASH_OK) {
        forward.size = 8;
        expect(ferroflash_plan_create(context, &forward, &plan) == FERROFLASH_INVALID
               && said("forward.size: 8"), "size");
        forward.size = sizeof forward;
        expect(ferroflash_plan_create(context, &forward, &plan) == FERROFLASH_INVALID && plan == NULL,
               "no sizes");
        forward.q = (void *)0x1000000;
        forward.k = (void *)0x2000000;
        forward.v = (void *)0x3000000;
        forward.o = (void *)0x4000000;
        forward.batch = 1;
        forward.seqlen_q = forward.seqlen_k = 128;
        forward.heads_q = forward.heads_k = 2;
        forward.head_dim = 64;
        const int64_t strides[4] = {128 * 2 * 64, 2 * 64, 64, 1};
        memcpy(forward.q_strides, strides, sizeof strides);
        memcpy(forward.k_strides, strides, sizeof strides);
        memcpy(forward.v_strides, strides, sizeof strides);
        memcpy(forward.o_strides, strides, sizeof strides);
        forward.mask = FERROFLASH_MASK_CAUSAL;
        expect(ferroflash_plan_create(context, &forward, &plan) == FERROFLASH_OK, "plan");
        expect(ferroflash_plan_describe(plan, &info) == FERROFLASH_OK && info.grid[0] > 0, "describe");
        ferroflash_plan_destroy(plan);
        forward.cu_seqlens_q = (const int32_t *)0x5000000;
        expect(ferroflash_plan_create(context, &forward, &plan) == FERROFLASH_INVALID
               && said("cu_seqlens_k: NULL"), "packed by half");
        forward.cu_seqlens_k = (const int32_t *)0x6000000;
        forward.total_q = forward.total_k = 128;
        expect(ferroflash_plan_create(context, &forward, &plan) == FERROFLASH_OK, "packed");
        forward.cu_seqlens_q = forward.cu_seqlens_k = NULL;
        uint64_t bytes = 1;
        expect(ferroflash_workspace_size(context, &forward, &bytes) == FERROFLASH_OK && bytes == 0,
               "no workspace needed");
        expect(ferroflash_workspace_size(context, &forward, NULL) == FERROFLASH_INVALID
               && said("bytes: NULL"), "no place");
        decode.q = forward.q;
        decode.k_cache = forward.k;
        decode.v_cache = forward.v;
        decode.o = forward.o;
        decode.seqused_k = (const int32_t *)0x5000000;
        decode.batch = decode.pages = 3;
        decode.seqlen_q = 1;
        decode.page = 512;
        decode.heads_q = decode.heads_k = 2;
        decode.head_dim = 64;
        const int64_t rows[4] = {2 * 64, 2 * 64, 64, 1};
        memcpy(decode.q_strides, rows, sizeof rows);
        memcpy(decode.o_strides, rows, sizeof rows);
        decode.cache_strides[0] = 512 * 2 * 64;
        decode.cache_strides[1] = 2 * 64;
        decode.cache_strides[2] = 64;
        expect(ferroflash_decode_plan_create(context, &decode, &decode_plan) == FERROFLASH_OK, "decode");
        expect(ferroflash_decode_plan_describe(decode_plan, &info) == FERROFLASH_OK
               && strncmp(info.entry, "decode_f16_d64_", 15) == 0 && strlen(info.reason) > 8, "which");
        /* What a program of version 1 knows: nothing behind it is written. */
        ferroflash_plan_info_t old = FERROFLASH_PLAN_INFO_INIT;
        old.size = PLAN_INFO_SIZE_V1;
        old.workspace_bytes = old.counters_bytes = 77;
        expect(ferroflash_decode_plan_describe(decode_plan, &old) == FERROFLASH_OK && old.entry == info.entry
               && old.smem_bytes == info.smem_bytes && old.workspace_bytes == 77 && old.counters_bytes == 77
               && old.size == PLAN_INFO_SIZE_V1, "an older plan info");
        old.size = PLAN_INFO_SIZE_V1 - 8;
        expect(ferroflash_decode_plan_describe(decode_plan, &old) == FERROFLASH_INVALID && said("info.size"),
               "no plan info");
        ferroflash_decode_plan_destroy(decode_plan);
        ferroflash_plan_destroy(plan);
        ferroflash_context_destroy(context);
    } else if (said("invalid tuning")) {
        expect(status == FERROFLASH_INVALID && context == NULL, "a clean error for a file that is no tuning");
    } else {
        expect(status == FERROFLASH_DRIVER && context == NULL && said("CUDA"),
               "a clean error without a driver");
    }
    return failures;
}
