/* What every compiler of C and C++ must accept without a warning. */
#include "ferroflash.h"

int main(void) {
    ferroflash_forward_t forward = FERROFLASH_FORWARD_INIT;
    ferroflash_plan_info_t info = FERROFLASH_PLAN_INFO_INIT;
    return forward.size == sizeof forward && forward.workspace_bytes == 0 && info.size == sizeof info ? 0 : 1;
}
