/* Watches over the kernel that was born together with its sandbox. Init does that itself, between other things and
 * without ever waiting: a supervisor for it would be one more process and one more program to load with every sandbox,
 * and, unlike init, code inside could stop it.
 *
 * To the host it looks the same as a supervisor (see supervisor.c). What belongs to the kernel is every child of init
 * that init has not forked: orphans of the kernel's tree come to pid 1, those of a command stay below its supervisor. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <signal.h>

#include "supervision.h"

#define PAUSE_NANOSECONDS 200000

static int control = -1, main_pid, main_ended, killing;
static long deadline;

int kernel_control(void) { return control; }
int kernel_orders(void) { return killing ? -1 : control; }

const struct timespec *kernel_pause(void)
{
    static const struct timespec moment = {.tv_nsec = PAUSE_NANOSECONDS};
    return killing ? &moment : 0;
}

void adopt_kernel(int control_socket, int pid)
{
    control = control_socket;
    main_pid = pid;
    report_event(control, SUPERVISOR_EVENT_STARTED, main_pid, 0, -1);
}

void note_end_of_kernel(int pid, int status)
{
    if (control < 0 || pid != main_pid || main_ended)
        return;
    main_ended = 1;
    report_event(control, SUPERVISOR_EVENT_ENDED, main_pid, status, -1);
}

/* The host sees it as the end of a supervisor. */
static void let_go(void)
{
    sys(SYS_close, control);
    control = -1;
    killing = 0;
}

static void begin_to_kill(void)
{
    if (killing)
        return;
    killing = 1;
    deadline = seconds() + KILL_SECONDS + 1;
    if (!main_ended) /* afterwards the number may be another's */
        sys(SYS_kill, -main_pid, SIGKILL);
}

static void pass_signal(int number)
{
    if (!main_ended)
        sys(SYS_kill, -main_pid, number);
    report_event(control, SUPERVISOR_EVENT_SIGNALLED, main_pid, number, -1);
}

void obey_for_kernel(void)
{
    struct supervisor_request request;
    long outcome = receive_order(control, &request);
    if (outcome == -EAGAIN || outcome == -EINTR)
        return;
    if (outcome != 1 && main_ended)
        let_go(); /* what the kernel left behind in the background stays */
    else if (outcome != 1 || request.op == SUPERVISOR_OP_KILL)
        begin_to_kill();
    else if (request.op == SUPERVISOR_OP_SIGNAL)
        pass_signal(request.signal);
}

/* Returns how many processes of the kernel are children of init, after killing them if that was asked for. As nobody
 * but init removes its children from the list, none are left only if no process of the kernel's tree is. */
static int count_own(void)
{
    const int *pids;
    int count = list_children(&pids), own = count < 0; /* if nobody knows, there may be some */
    for (int i = 0; i < count; i++) {
        if (is_forked_by_init(pids[i]))
            continue;
        own++;
        if (killing)
            sys(SYS_kill, pids[i], SIGKILL);
    }
    return own;
}

void tend_kernel(void)
{
    if (control < 0 || (!main_ended && !killing))
        return;
    if (killing && seconds() > deadline) {
        kill_everything(); /* they fork and exit faster than that */
        deadline = LONG_MAX;
    }
    if (!count_own())
        let_go();
}

void give_up_kernel(void)
{
    if (killing)
        let_go();
}
