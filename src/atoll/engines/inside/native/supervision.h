/* What the host and whoever watches over a process inside tell each other: a supervisor, or init for the first kernel. */
#pragma once

#include <time.h>

#include "guest.h"

/* How long those are killed one by one who may fork and exit faster than that. */
#define KILL_SECONDS 1

static inline void report_event(int control, int event, int pid, int status, int fd)
{
    struct supervisor_report report = {.event = (uint32_t)event, .pid = pid, .status = status};
    send_message(control, &report, sizeof report, fd);
}

/* Returns 1, 0 at the end, -errno on failure. */
static inline long receive_order(int control, struct supervisor_request *request)
{
    int fds[PASSING_MOST], count;
    long length = receive_message(control, request, sizeof *request, fds, &count);
    close_fds(fds, count);
    return length < 0 ? length : length == sizeof *request;
}

static inline long seconds(void)
{
    struct timespec now;
    sys(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}
