/* What every compiler of C and C++ must accept without a warning. */
#include "ferroflash.h"

int main(void) {
    ferroflash_attention_t attention = FERROFLASH_ATTENTION_INIT;
    ferroflash_plan_info_t info = FERROFLASH_PLAN_INFO_INIT;
    ferroflash_backward_t backward = FERROFLASH_BACKWARD_INIT;
    ferroflash_append_t append = FERROFLASH_APPEND_INIT;
    ferroflash_merge_t merge = FERROFLASH_MERGE_INIT;
    int plans = attention.size == sizeof attention && attention.counters_bytes == 0
                && attention.alibi_strides[1] == 0 && info.size == sizeof info && info.counters_bytes == 0;
    int training = backward.size == sizeof backward && backward.forward == NULL && backward.d_lse == NULL;
    int serving = append.size == sizeof append && append.v_scales == NULL && merge.lse_unit == 0
                  && merge.state_size == sizeof(ferroflash_state_t);
    return plans && training && serving ? 0 : 1;
}
