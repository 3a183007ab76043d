/* Failpoints: in a testing build each set-up step can be made to fail, or be left out.
 * A release build holds neither. */
#pragma once

#include <errno.h>

#include "wire.h"

#ifdef ATOLL_FAILPOINTS
#define step_fails(request, step) ((request)->failpoint == (uint32_t)(step))
#define step_omitted(request, step) (((request)->omit >> (step)) & 1)
#else
#define step_fails(request, step) 0
#define step_omitted(request, step) 0
#endif

/* Runs `call`, which answers -errno on failure, as one step: returns from the enclosing function with
 * the error. `failed` is where the step's name is left. */
#define STEP(request, failed, step, call)                                       \
    do {                                                                        \
        if (!step_omitted(request, step)) {                                     \
            *(failed) = (step);                                                 \
            long outcome_ = step_fails(request, step) ? -EIO : (long)(call);    \
            if (outcome_ < 0)                                                   \
                return outcome_;                                                \
        }                                                                       \
    } while (0)
