/* What every compiler of C and C++ must accept without a warning. */
#include "ferroflash.h"

int main(void) {
    ferroflash_forward_t forward = FERROFLASH_FORWARD_INIT;
    ferroflash_plan_info_t info = FERROFLASH_PLAN_INFO_INIT;
    ferroflash_append_t append = FERROFLASH_APPEND_INIT;
    ferroflash_merge_t merge = FERROFLASH_MERGE_INIT;
    ferroflash_decode_t decode = FERROFLASH_DECODE_INIT;
    int attention = forward.size == sizeof forward && forward.alignment == 0
                    && forward.alibi_strides[1] == 0 && info.size == sizeof info;
    int serving = append.size == sizeof append && append.v_scales == NULL && merge.lse_unit == 0
                  && merge.state_size == sizeof(ferroflash_state_t) && decode.total_k == 0
                  && decode.size == sizeof decode && decode.counters_bytes == 0
                  && decode.alibi_strides[1] == 0;
    return attention && serving ? 0 : 1;
}
