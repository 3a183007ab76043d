/* Processes: each under a supervisor of its own, which can end all that it started (see supervisor.c of the other
 * programs that run inside). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "steward.h"
#include "supervision.h"

#define MOMENT_NANOSECONDS 200000
#define MOST_REPORTS 64

static uint64_t open_files;
/* Until when those are waited for who were killed because somebody inside has killed a supervisor. */
static long clearing_until;

void set_open_files(uint64_t most) { open_files = most; }

/* What supervisors ask, who know of another way to have kernels. */
int kernel_control(void) { return -1; }

_Noreturn void leave(int code)
{
    for (;;)
        sys(SYS_exit_group, code);
}

/* The steward needs descriptors for all that runs; those who run get as many as they may have. */
static void limit_descriptors(void)
{
    uint64_t limits[2] = {open_files, open_files};
    if (open_files)
        sys(SYS_prlimit64, 0, RLIMIT_NOFILE, limits, 0);
}

static void set_nonblocking(int fd) { sys(SYS_fcntl, fd, F_SETFL, O_NONBLOCK); }

static long keep_payload(const char *payload, uint32_t length)
{
    long memory = sys(SYS_memfd_create, "command", MFD_CLOEXEC);
    if (memory < 0)
        return memory;
    for (uint32_t at = 0; at < length;) {
        long part = sys(SYS_write, memory, payload + at, length - at);
        if (part <= 0) {
            sys(SYS_close, memory);
            return part < 0 ? part : -EIO;
        }
        at += (uint32_t)part;
    }
    return memory;
}

static long open_pipe(int *reading, int *writing)
{
    int ends[2];
    long outcome = sys(SYS_pipe2, ends, O_CLOEXEC);
    if (!outcome) {
        *reading = ends[0];
        *writing = ends[1];
    }
    return outcome;
}

/* Opens what connects the steward with a process; `theirs` are the three streams of the process. */
static long open_streams(struct object *object, int with_channel, int *theirs)
{
    int ends[2];
    long outcome;
    if (with_channel) {
        outcome = sys(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends);
        if (outcome)
            return outcome;
        theirs[0] = ends[1];
        object->in.fd = ends[0];
        object->out[CHANNEL_TALK - 1].fd = (int)sys(SYS_fcntl, ends[0], F_DUPFD_CLOEXEC, 3);
        set_nonblocking(object->out[CHANNEL_TALK - 1].fd);
    } else {
        outcome = open_pipe(&theirs[0], &object->in.fd);
    }
    if (!outcome)
        outcome = open_pipe(&object->out[0].fd, &theirs[1]);
    if (!outcome)
        outcome = open_pipe(&object->out[1].fd, &theirs[2]);
    if (!outcome) {
        set_nonblocking(object->in.fd);
        set_nonblocking(object->out[0].fd);
        set_nonblocking(object->out[1].fd);
    }
    return outcome;
}

static long open_control(struct object *object, int *control, int *failures)
{
    int ends[2];
    long outcome = sys(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends);
    if (outcome)
        return outcome;
    object->control = ends[0];
    *control = ends[1];
    set_nonblocking(object->control);
    outcome = open_pipe(&object->failures, failures);
    if (!outcome)
        set_nonblocking(object->failures);
    return outcome;
}

static _Noreturn void become_supervisor(uint64_t mark, const int *fds, int count)
{
    close_link();
    close_objects();
    limit_descriptors();
    if (uses_marks() && put_mark(mark))
        leave(1);
    supervise(fds, count);
}

static void close_given(const int *fds)
{
    for (int i = 0; i < 6; i++)
        if (fds[i] >= 0)
            sys(SYS_close, fds[i]);
}

/* Lets go of one that could not be started; the host hears why. */
static void give_up(struct object *object, int stage, long error)
{
    say_numbers(object->id, WORD_FAILED, stage, (int)-error);
    object->is_released = 1;
    for (int i = 0; i < 3; i++)
        close_outlet(&object->out[i]);
    forget_if_over(object);
}

void start_process(uint32_t id, int kind, const char *payload, uint32_t length)
{
    struct object *object = make_object(id, PROCESS);
    if (!object) {
        say_numbers(id, WORD_FAILED, START_STAGE_FORK, EAGAIN);
        return;
    }
    object->mark = new_mark();
    const struct run_header *header = (const struct run_header *)payload;
    int is_terminal = length > sizeof *header && header->flags & RUN_FLAG_TERMINAL;
    int fds[6] = {-1, -1, -1, -1, -1, -1};
    long outcome = open_control(object, &fds[0], &fds[2]);
    if (!outcome && (outcome = keep_payload(payload, length)) >= 0) {
        fds[1] = (int)outcome;
        outcome = is_terminal ? 0 : open_streams(object, kind == START_KIND_CHANNEL, fds + 3);
    }
    if (!outcome) {
        struct supervisor_request go = {.op = SUPERVISOR_OP_GO};
        send_message(object->control, &go, sizeof go, -1);
        outcome = sys(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    }
    if (outcome == 0)
        become_supervisor(object->mark, fds, is_terminal ? 3 : 6);
    close_given(fds);
    if (outcome < 0)
        give_up(object, START_STAGE_FORK, outcome);
    else
        object->pid = (int)outcome;
}

static _Noreturn void become_file_worker(const char *request, uint32_t length, int in, int out)
{
    close_link();
    close_objects();
    do_file_work(request, length, in, out);
}

void start_file_work(uint32_t id, const char *request, uint32_t length)
{
    struct object *object = make_object(id, FILE_WORK);
    if (!object) {
        say_numbers(id, WORD_FAILED, START_STAGE_FORK, EAGAIN);
        return;
    }
    int in = -1, out = -1;
    long outcome = open_pipe(&in, &object->in.fd);
    if (!outcome)
        outcome = open_pipe(&object->out[0].fd, &out);
    if (!outcome) {
        set_nonblocking(object->in.fd);
        set_nonblocking(object->out[0].fd);
        outcome = sys(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    }
    if (outcome == 0)
        become_file_worker(request, length, in, out);
    close_fds((int[]){in, out}, 2);
    if (outcome < 0)
        give_up(object, START_STAGE_FORK, outcome);
    else
        object->pid = (int)outcome;
}

static void note_started(struct object *object)
{
    object->is_started = 1;
    say_numbers(object->id, WORD_STARTED, object->main_pid, 0);
}

struct start_failure {
    int stage, error;
};

void read_failure(struct object *object)
{
    struct start_failure failure;
    long length = sys(SYS_read, object->failures, &failure, sizeof failure);
    if (length == -EAGAIN || length == -EINTR)
        return;
    sys(SYS_close, object->failures);
    object->failures = -1;
    if (object->is_started || object->is_ended)
        return;
    if (length == sizeof failure) {
        object->is_ended = 1; /* the host has heard all there is */
        say_numbers(object->id, WORD_FAILED, failure.stage, failure.error);
    } else if (object->main_pid) {
        note_started(object);
    }
}

static void take_terminal(struct object *object, int master)
{
    object->in.fd = master;
    object->out[0].fd = (int)sys(SYS_fcntl, master, F_DUPFD_CLOEXEC, 3);
    set_nonblocking(master);
}

static void note_ended(struct object *object, int status)
{
    struct process_ending ending = {.status = status};
    object->is_ended = 1;
    for (int i = 0; i < 2; i++)
        ending.output_bytes[i] = bytes_to_come(&object->out[i]);
    if (!object->is_released)
        say(object->id, WORD_ENDED, 0, &ending, sizeof ending);
}

static void take_report(struct object *object, const struct supervisor_report *report)
{
    switch (report->event) {
    case SUPERVISOR_EVENT_STARTED:
        object->main_pid = report->pid;
        object->is_weak = report->status;
        if (object->failures < 0 && !object->is_ended)
            note_started(object); /* it became the program meanwhile */
        break;
    case SUPERVISOR_EVENT_FAILED:
        object->is_ended = 1;
        say_numbers(object->id, WORD_FAILED, report->pid, report->status);
        break;
    case SUPERVISOR_EVENT_ENDED:
        if (object->failures >= 0)
            read_failure(object); /* whether it was the program that ended */
        if (!object->is_ended)
            note_ended(object, report->status);
        break;
    case SUPERVISOR_EVENT_SIGNALLED:
        say_numbers(object->id, WORD_SIGNALLED, report->status, 0);
        break;
    }
}

void read_report(struct object *object)
{
    struct supervisor_report report;
    int fds[PASSING_MOST], count;
    long length = receive_message(object->control, &report, sizeof report, fds, &count);
    if (length == -EAGAIN || length == -EINTR)
        return;
    if (length == sizeof report) {
        if (count == 1 && report.event == SUPERVISOR_EVENT_STARTED && object->in.fd < 0)
            take_terminal(object, fds[0]);
        else
            close_fds(fds, count);
        take_report(object, &report);
        return;
    }
    close_fds(fds, count);
    sys(SYS_close, object->control); /* its end is noticed when it is reaped */
    object->control = -1;
}

void order_supervisor(struct object *object, int op, int signal)
{
    struct supervisor_request request = {.op = (uint32_t)op, .signal = signal};
    if (object->control >= 0)
        send_message(object->control, &request, sizeof request, -1);
    else if (object->kind == FILE_WORK && object->pid && op == SUPERVISOR_OP_KILL)
        sys(SYS_kill, object->pid, SIGKILL);
}

void resize_terminal(struct object *object, int rows, int columns)
{
    struct winsize size = {.ws_row = (uint16_t)rows, .ws_col = (uint16_t)columns};
    if (object->in.fd >= 0)
        sys(SYS_ioctl, object->in.fd, TIOCSWINSZ, &size);
    if (object->is_weak)
        order_supervisor(object, SUPERVISOR_OP_KEY, SIGWINCH);
}

/* Its supervisor cannot find them all; it goes with them, also one that has no mark yet. Who forks and exits faster than
 * that takes everybody along. */
static void kill_by_mark(struct object *object)
{
    const struct timespec moment = {.tv_nsec = MOMENT_NANOSECONDS};
    uint32_t id = object->id;
    uint64_t mark = object->mark;
    long deadline = seconds() + KILL_SECONDS + 1;
    object->is_killed = 1;
    if (object->pid)
        sys(SYS_kill, object->pid, SIGKILL);
    while (kill_marked(mark) || (object->mark == mark && object->pid)) {
        if (seconds() > deadline) {
            kill_everything();
            break;
        }
        sys(SYS_nanosleep, &moment, 0);
        reap();
    }
    struct object *left = find_object(id);
    if (left && !left->pid)
        say_numbers(id, WORD_GONE, 0, 0); /* for whoever asked after its end */
}

void kill_process(struct object *object)
{
    if (object->kind == PROCESS && uses_marks())
        kill_by_mark(object);
    else
        order_supervisor(object, SUPERVISOR_OP_KILL, 0);
}

void kill_everything(void) { sys(SYS_kill, -1, SIGKILL); }

/* As the host wants it: whoever ends by that has left nothing behind. */
void kill_all(void)
{
    for (struct object *each = 0; (each = next_object(each));)
        each->is_killed = 1;
    kill_everything();
}

void wake_supervisors(void)
{
    for (struct object *each = 0; (each = next_object(each));)
        if (each->pid)
            sys(SYS_kill, each->pid, SIGCONT);
}

/* All that a supervisor has said was said before its end. One that somebody inside has killed may have left behind what it
 * was to watch: then everything goes. */
static void note_gone(struct object *object, int status)
{
    /* Who has it still open, a child that somebody inside has stopped, has nothing to say. */
    for (int i = 0; i < MOST_REPORTS && object->control >= 0; i++)
        read_report(object);
    if (object->control >= 0) {
        sys(SYS_close, object->control);
        object->control = -1;
    }
    if (object->failures >= 0)
        read_failure(object);
    object->pid = 0;
    if (object->kind == PROCESS && status && !object->is_killed) {
        kill_everything();
        clearing_until = seconds() + KILL_SECONDS + 1;
    }
    if (!object->is_released)
        say_numbers(object->id, WORD_GONE, status, 0);
    forget_if_over(object);
}

/* Returns whether there are children left. */
static int reap_dead(void)
{
    int status;
    long pid;
    while ((pid = sys(SYS_wait4, -1, &status, WNOHANG, 0)) > 0) {
        struct object *object = find_object_by_pid((int)pid);
        if (object)
            note_gone(object, status);
    }
    return pid != -ECHILD;
}

/* While they die they count, and what the host has started next would find no room. Orphans come to pid 1, so without children
 * it is alone. */
void reap(void)
{
    const struct timespec moment = {.tv_nsec = MOMENT_NANOSECONDS};
    while (reap_dead() && seconds() < clearing_until)
        sys(SYS_nanosleep, &moment, 0);
    clearing_until = 0;
}
