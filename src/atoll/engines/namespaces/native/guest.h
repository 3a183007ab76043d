/* The parts of the static program that runs inside: init, and what init forks. */
#pragma once

#include "passing.h"
#include "sys.h"
#include "wire.h"

_Noreturn void leave(int code);

/* Runs one command and watches over all that it starts. Descriptors: control, payload,
 * where a failed start is told, and, unless it gets a terminal, standard streams. */
_Noreturn void supervise(const int *fds, int count);

/* The same for a kernel that was forked already. */
_Noreturn void supervise_kernel(int control_socket, int pid);

/* Serves file requests on `control` until it ends. */
_Noreturn void serve_files(int control);

/* Returns a signalfd for SIGCHLD, which has to be blocked. */
int watch_children(void);

static inline void close_fds(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        sys(SYS_close, fds[i]);
}
