/* Which descriptors go on into the next program. */
#pragma once

#include <fcntl.h>

#include "sys.h"

#define CONTROL_FD 3

/* Moves descriptors to where whoever comes next looks for them, and closes all others. They are in ascending order,
 * as they were received, so none is overwritten before it has moved. */
static inline long keep_only(const int *fds, int count)
{
    long outcome = 0;
    for (int i = 0; i < count && outcome >= 0; i++) {
        int place = CONTROL_FD + i;
        outcome = fds[i] != place ? sys(SYS_dup3, fds[i], place, 0) : sys(SYS_fcntl, place, F_SETFD, 0);
    }
    return outcome < 0 ? outcome : sys(SYS_close_range, CONTROL_FD + count, ~0U, 0);
}
