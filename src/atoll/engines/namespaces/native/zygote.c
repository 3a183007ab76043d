/* What a zygote does: it makes one sandbox after the other, as it is asked. */
#define _GNU_SOURCE
#include "zygote.h"

#include <errno.h>
#include <signal.h>

#include "interpreter.h"
#include "passing.h"
#include "seal.h"
#include "spawn.h"
#include "steps.h"
#include "sys.h"

/* Makes a second zygote of this one. Returns the socket that this process serves from now on. */
static int split(int control, int fd, struct step_reply *reply)
{
    long pid = has_interpreter() ? fork_interpreter() : sys(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        sys(SYS_close, control);
        return fd;
    }
    *reply = (struct step_reply){.step = pid < 0 ? STEP_CLONE : STEP_NONE, .error = pid < 0 ? EAGAIN : 0};
    return control;
}

void serve_spawns(int control)
{
    static struct spawn_request request;
    int fds[PASSING_MOST], count;
    signal(SIGCHLD, SIG_IGN); /* sandboxes that end leave no zombie */
    for (;;) {
        long length = receive_message(control, &request, sizeof request, fds, &count);
        if (length <= 0)
            sys(SYS_exit_group, 0);
        struct step_reply reply = {.step = STEP_CLONE, .error = EPROTO};
        if (length == sizeof request && request.flags == SPAWN_FLAG_SPLIT && count == 1) {
            int served = split(control, fds[0], &reply);
            if (served != control) {
                control = served;
                continue;
            }
        } else if (length == sizeof request) {
            reply = spawn(&request, fds, count);
        }
        for (int i = 0; i < count; i++)
            sys(SYS_close, fds[i]);
        send_message(control, &reply, sizeof reply, -1);
    }
}

void say_ready(int control, int step, long error)
{
    struct step_reply hello = {.step = step, .error = (int)-error};
    send_message(control, &hello, sizeof hello, -1);
    if (error)
        sys(SYS_exit_group, 1);
}

static long start_zygote(int filter, const struct keeper_request *jail, int *failed)
{
    (void)jail; /* only a testing build looks at it */
    STEP(jail, failed, STEP_ZYGOTE_FILTER, load_filter(filter));
    *failed = STEP_NONE;
    return 0;
}

_Noreturn void serve_zygote(int control, int filter, const struct keeper_request *jail)
{
    int step;
    long error = start_zygote(filter, jail, &step);
    say_ready(control, step, error);
    serve_spawns(control);
    __builtin_unreachable();
}
