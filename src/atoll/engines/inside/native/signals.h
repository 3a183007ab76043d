/* Signals as a program expects to find them: whoever started this one may have had some ignored or held back, as
 * `nohup`, a shell's `&` and Python do, and that would be passed on to all that is started from here. */
#pragma once

#include <signal.h>

#include "sys.h"

#define MOST_SIGNALS 64

static inline void reset_signals(void)
{
    struct {
        void *handler;
        unsigned long flags;
        void *restorer;
        uint64_t mask;
    } standard = {0};
    for (int number = 1; number <= MOST_SIGNALS; number++)
        sys(SYS_rt_sigaction, number, &standard, 0, sizeof standard.mask);
    sys(SYS_rt_sigprocmask, SIG_SETMASK, &standard.mask, 0, sizeof standard.mask);
}
