/* What a C program sees of ferroflash.h. */
#include "ferroflash.h"

#include <stdio.h>
#include <string.h>

static int failures = 0;

static void expect(int holds, const char *what) {
    if (!holds) {
        failures++;
        printf("FAILED: %s (last error: %s)\n", what, ferroflash_last_error());
    }
}

static int said(const char *words) { return strstr(ferroflash_last_error(), words) != NULL; }

/* A contiguous [batch, rows, heads, head_dim]. */
static void contiguous(int64_t strides[4], int64_t rows, int64_t heads, int64_t head_dim) {
    strides[3] = 1;
    strides[2] = head_dim;
    strides[1] = heads * strides[2];
    strides[0] = rows * strides[1];
}

static void without_a_device(void) {
    ferroflash_plan_t *plan = NULL;
    ferroflash_attention_t attention = FERROFLASH_ATTENTION_INIT;
    ferroflash_plan_info_t info = FERROFLASH_PLAN_INFO_INIT;
    ferroflash_backward_t backward = FERROFLASH_BACKWARD_INIT;
    ferroflash_append_t append = FERROFLASH_APPEND_INIT;
    ferroflash_merge_t merge = FERROFLASH_MERGE_INIT;

    expect(ferroflash_abi_version() == FERROFLASH_ABI_VERSION, "version of the interface");
    expect(strcmp(ferroflash_version(), VERSION) == 0, "version of the library");
    expect(ferroflash_attention_size() == sizeof attention && ferroflash_plan_info_size() == sizeof info,
           "sizes");
    expect(ferroflash_backward_size() == sizeof backward, "size");
    expect(ferroflash_append_size() == sizeof append && ferroflash_merge_size() == sizeof merge, "sizes");
    expect(strcmp(ferroflash_last_error(), "") == 0, "no error yet");
    expect(ferroflash_entry_count() > 0 && strncmp(ferroflash_entry_name(0), "fwd_", 4) == 0, "entries");
    expect(ferroflash_entry_name(ferroflash_entry_count()) == NULL, "no entry behind the last");

    expect(ferroflash_context_create(NULL) == FERROFLASH_INVALID && said("context: NULL"),
           "no place for a context");
    expect(ferroflash_plan_create(NULL, &attention, &plan) == FERROFLASH_INVALID && said("context: NULL"),
           "no context");
    expect(ferroflash_attention(NULL, NULL, NULL) == FERROFLASH_INVALID && said("NULL"), "nothing at all");
    expect(ferroflash_plan_describe(NULL, &info) == FERROFLASH_INVALID && said("plan: NULL"), "no plan");
    expect(ferroflash_launch(NULL, NULL, &attention, NULL) == FERROFLASH_INVALID
           && ferroflash_load(NULL, NULL) == FERROFLASH_INVALID, "nothing to launch");
    expect(ferroflash_backward(NULL, &backward, NULL) == FERROFLASH_INVALID && said("context: NULL")
           && ferroflash_backward_launch(NULL, NULL, &backward, NULL) == FERROFLASH_INVALID
           && ferroflash_backward_plan_create(NULL, &backward, &plan) == FERROFLASH_INVALID, "backward");
    expect(ferroflash_append(NULL, &append, NULL) == FERROFLASH_INVALID && said("context: NULL"), "append");
    expect(ferroflash_merge(NULL, &merge, NULL) == FERROFLASH_INVALID && said("context: NULL"), "merge");
    ferroflash_context_destroy(NULL);
    ferroflash_plan_destroy(NULL);
}

static ferroflash_attention_t tensors(void);
static void backward_pass(const ferroflash_context_t *context);

/* A profile plans, and launches nothing. */
static void on_a_profile(void) {
    ferroflash_plan_t *plan = (ferroflash_plan_t *)&failures;
    ferroflash_context_t *context = (ferroflash_context_t *)&failures;
    ferroflash_attention_t attention = FERROFLASH_ATTENTION_INIT;
    ferroflash_plan_info_t info = FERROFLASH_PLAN_INFO_INIT;
    expect(ferroflash_context_create_profile("abacus", &context) == FERROFLASH_INVALID && context == NULL
           && said("profile: abacus") && said("h200"), "no such card");
    expect(ferroflash_context_create_profile("h200", &context) == FERROFLASH_OK, "a common card");
    expect(ferroflash_plan_create(context, &attention, &plan) == FERROFLASH_INVALID && plan == NULL,
           "a failed plan is NULL");
    attention = tensors();
    expect(ferroflash_plan_create(context, &attention, &plan) == FERROFLASH_OK
           && ferroflash_plan_describe(plan, &info) == FERROFLASH_OK
           && strlen(info.entry) > 8 && strlen(info.reason) > 8, "a plan for a card that is not here");
    expect(ferroflash_load(context, plan) == FERROFLASH_INVALID && said("profile")
           && ferroflash_launch(context, plan, &attention, NULL) == FERROFLASH_INVALID
           && ferroflash_attention(context, &attention, NULL) == FERROFLASH_INVALID, "no GPU");
    ferroflash_plan_destroy(plan);
    backward_pass(context);
    ferroflash_context_destroy(context);
}

/* One sequence of 128 queries and keys. */
static ferroflash_attention_t tensors(void) {
    ferroflash_attention_t attention = FERROFLASH_ATTENTION_INIT;
    attention.q = (void *)0x1000000;
    attention.k = (void *)0x2000000;
    attention.v = (void *)0x3000000;
    attention.o = (void *)0x4000000;
    attention.batch = 1;
    attention.seqlen_q = attention.seqlen_k = 128;
    attention.heads_q = attention.heads_k = 2;
    attention.head_dim = 64;
    contiguous(attention.q_strides, 128, 2, 64);
    contiguous(attention.k_strides, 128, 2, 64);
    contiguous(attention.v_strides, 128, 2, 64);
    contiguous(attention.o_strides, 128, 2, 64);
    attention.mask = FERROFLASH_MASK_CAUSAL;
    return attention;
}

/* The gradients of an attention that has written its lse. */
static ferroflash_backward_t gradients(const ferroflash_attention_t *forward) {
    ferroflash_backward_t backward = FERROFLASH_BACKWARD_INIT;
    backward.forward = forward;
    backward.d_o = (void *)0x6000000;
    backward.dq = (void *)0x7000000;
    backward.dk = (void *)0x8000000;
    backward.dv = (void *)0x9000000;
    contiguous(backward.d_o_strides, 128, 2, 64);
    contiguous(backward.dq_strides, 128, 2, 64);
    contiguous(backward.dk_strides, 128, 2, 64);
    contiguous(backward.dv_strides, 128, 2, 64);
    return backward;
}

static void backward_pass(const ferroflash_context_t *context) {
    ferroflash_plan_t *plan = NULL;
    ferroflash_plan_info_t info = FERROFLASH_PLAN_INFO_INIT;
    ferroflash_attention_t forward = tensors();
    ferroflash_backward_t backward = gradients(&forward);
    expect(ferroflash_backward_plan_create(context, &backward, &plan) == FERROFLASH_INVALID && plan == NULL
           && said("lse"), "no lse");
    forward.lse = (float *)0x5000000;
    forward.lse_strides[0] = 2 * 128;
    forward.lse_strides[1] = 128;
    expect(ferroflash_backward_plan_create(context, &backward, &plan) == FERROFLASH_OK
           && ferroflash_plan_describe(plan, &info) == FERROFLASH_OK
           && strncmp(info.entry, "bwd_", 4) == 0 && info.workspace_bytes > 0, "a plan of gradients");
    expect(ferroflash_launch(context, plan, &forward, NULL) == FERROFLASH_INVALID, "a plan of another kind");
    expect(ferroflash_backward_launch(context, plan, &backward, NULL) == FERROFLASH_INVALID,
           "a launch without a workspace, or on a profile");
    ferroflash_plan_destroy(plan);
}

static void on_tensors(const ferroflash_context_t *context) {
    ferroflash_plan_t *plan = NULL;
    ferroflash_attention_t attention = FERROFLASH_ATTENTION_INIT;
    ferroflash_plan_info_t info = FERROFLASH_PLAN_INFO_INIT;
    expect(ferroflash_plan_create(context, &attention, &plan) == FERROFLASH_INVALID && plan == NULL,
           "no sizes");
    attention = tensors();
    attention.size = 8;
    expect(ferroflash_plan_create(context, &attention, &plan) == FERROFLASH_INVALID
           && said("attention.size: 8"), "size");
    attention.size = sizeof attention;
    expect(ferroflash_plan_create(context, &attention, &plan) == FERROFLASH_OK, "plan");
    expect(ferroflash_plan_describe(plan, &info) == FERROFLASH_OK && info.grid[0] > 0, "describe");
    ferroflash_plan_destroy(plan);
    uint64_t workspace = 1, counters = 1;
    expect(ferroflash_scratch_size(context, &attention, &workspace, &counters) == FERROFLASH_OK
           && workspace == 0 && counters == 0, "no workspace needed");
    expect(ferroflash_scratch_size(context, &attention, &workspace, NULL) == FERROFLASH_INVALID
           && said("counters_bytes: NULL"), "no place");

    attention.cu_seqlens_q = (const int32_t *)0x5000000;
    expect(ferroflash_plan_create(context, &attention, &plan) == FERROFLASH_INVALID
           && said("cu_seqlens_k: NULL"), "varlen by half");
    /* An older program's struct ends before these fields, whatever lies behind it. */
    attention.size = ATTENTION_LEAST;
    expect(ferroflash_plan_create(context, &attention, &plan) == FERROFLASH_OK, "an older struct");
    ferroflash_plan_destroy(plan);
    attention.size = sizeof attention;
    attention.cu_seqlens_k = (const int32_t *)0x6000000;
    attention.total_q = attention.total_k = 128;
    expect(ferroflash_plan_create(context, &attention, &plan) == FERROFLASH_OK, "varlen");
    ferroflash_plan_destroy(plan);
}

static void on_a_cache(const ferroflash_context_t *context) {
    ferroflash_plan_t *plan = NULL;
    ferroflash_plan_info_t info = FERROFLASH_PLAN_INFO_INIT;
    ferroflash_attention_t attention = tensors();
    attention.seqused_k = (const int32_t *)0x5000000;
    attention.batch = attention.pages = 3;
    attention.seqlen_q = 1;
    attention.seqlen_k = 0;
    attention.page = 512;
    contiguous(attention.q_strides, 1, 2, 64);
    contiguous(attention.o_strides, 1, 2, 64);
    contiguous(attention.k_strides, 512, 2, 64);
    contiguous(attention.v_strides, 512, 2, 64);
    expect(ferroflash_plan_create(context, &attention, &plan) == FERROFLASH_OK, "decode");
    expect(ferroflash_plan_describe(plan, &info) == FERROFLASH_OK
           && strncmp(info.entry, "decode_f16_d64_", 15) == 0 && strlen(info.reason) > 8, "which");
    /* Of an older program's struct nothing behind its end is written. */
    ferroflash_plan_info_t old = FERROFLASH_PLAN_INFO_INIT;
    old.size = PLAN_INFO_LEAST;
    old.workspace_bytes = old.counters_bytes = 77;
    expect(ferroflash_plan_describe(plan, &old) == FERROFLASH_OK && old.entry == info.entry
           && old.smem_bytes == info.smem_bytes && old.workspace_bytes == 77 && old.counters_bytes == 77
           && old.size == PLAN_INFO_LEAST, "an older plan info");
    old.size = PLAN_INFO_LEAST - 8;
    expect(ferroflash_plan_describe(plan, &old) == FERROFLASH_INVALID && said("info.size"), "no plan info");
    ferroflash_plan_destroy(plan);
}

int main(void) {
    without_a_device();
    ferroflash_context_t *context = (ferroflash_context_t *)&failures;
    ferroflash_status_t status = ferroflash_context_create(&context);
    printf("context: %d\n%s\n", status, ferroflash_last_error());
    if (status == FERROFLASH_OK) {
        on_tensors(context);
        on_a_cache(context);
        backward_pass(context);
        expect(said("workspace.bytes: 0"), "the launch lacked a workspace");
        ferroflash_context_destroy(context);
    } else if (said("invalid tuning")) {
        expect(status == FERROFLASH_INVALID && context == NULL, "a clean error for a file that is no tuning");
        return failures;
    } else {
        expect(status == FERROFLASH_DRIVER && context == NULL && said("CUDA"),
               "a clean error without a driver");
    }
    on_a_profile();
    return failures;
}
