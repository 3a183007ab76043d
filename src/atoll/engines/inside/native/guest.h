/* The parts of the static program that runs inside: init, and what init forks. */
#pragma once

#include <time.h>

#include "passing.h"
#include "sys.h"
#include "inside_wire.h"

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

/* Reads what came there; the children themselves have yet to be waited for. */
void forget_notices(int watch);

/* Returns how many children this process has, or -1 if that cannot be found out, and who they are. */
int list_children(const int **pids);

/* Whether this kernel lists them; else they have to be looked for. */
int lists_children(void);

/* Returns how many processes there are, or -1, and up to `most` of their numbers. */
int list_processes(int *pids, int most);

/* Kills every process of the sandbox but init. */
void kill_everything(void);

/* Whether init has forked it, as it does supervisors and file servers. */
int is_forked_by_init(int pid);

/* Has init watch over a kernel that is its child. */
void adopt_kernel(int control_socket, int pid);

/* Its control socket, or -1 if there is no kernel to watch over (any more). */
int kernel_control(void);

/* What init polls for the kernel: its control socket, unless it was told the last already; and for how long at most. */
int kernel_orders(void);
const struct timespec *kernel_pause(void);

/* Does what the host has told. */
void obey_for_kernel(void);

/* Tells the host, if it was the kernel that has ended. */
void note_end_of_kernel(int pid, int status);

/* Goes on with what cannot be done at once: killing, and noticing that nobody is left. */
void tend_kernel(void);

/* Does not wait any more for those that are being killed. */
void give_up_kernel(void);

static inline void close_fds(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        sys(SYS_close, fds[i]);
}
