/* Watches over one command: starts it when the host says so, passes signals, and can end all that it
 * started, also what left its process group or session, because orphans of this subtree come to this
 * process (it is a subreaper).
 *
 * Before GO an end of the control socket means that the start was given up: nothing runs. While the command
 * runs it means that nobody wants it any more: everything is killed. After its end, what the command
 * left behind in the background stays. Where init watches over a kernel, so does this process, because orphans that come
 * to init are taken for that kernel's.
 *
 * The command can stop this process from its first moment on. So all that the host has to hear is said before that:
 * the child waits until its pid is reported, and whether it became the program the host learns from the child alone,
 * through a pipe that closes with the exec. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "signals.h"
#include "supervision.h"

#define MOST_STRINGS 262144 /* more than fit into what a command may take */

static struct run_header *payload;
static const char *working_directory;
static const char **arguments, **environment;
static int control, children, main_pid, main_ended, keeps_leftovers;
/* Where a kernel's terminals send no signals, as gVisor's do not, the supervisor has it for its own and sends them. */
static int weak_terminal = -1;

static void report(int event, int pid, int status, int fd) { report_event(control, event, pid, status, fd); }

static _Noreturn void fail(int stage, long error)
{
    report(SUPERVISOR_EVENT_FAILED, stage, (int)-error, -1);
    leave(0);
}

static const char *next_string(const char *text) { return text + text_length(text) + 1; }

/* The payload comes from the host and is well formed; the room for pointers is taken from the kernel. */
static void read_payload(int fd)
{
    struct stat facts;
    if (sys(SYS_fstat, fd, &facts) || facts.st_size <= (long)sizeof *payload)
        fail(START_STAGE_PAYLOAD, -EINVAL);
    long mapped = sys(SYS_mmap, 0, facts.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    if (mapped < 0)
        fail(START_STAGE_PAYLOAD, mapped);
    payload = (struct run_header *)mapped;
    uint32_t strings = payload->arguments + payload->variables;
    if (strings > MOST_STRINGS)
        fail(START_STAGE_PAYLOAD, -E2BIG);
    long room = sys(SYS_mmap, 0, (strings + 2) * sizeof(char *), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room < 0)
        fail(START_STAGE_PAYLOAD, room);
    arguments = (const char **)room;
    environment = arguments + payload->arguments + 1;
    working_directory = (const char *)(payload + 1);
    const char *text = next_string(working_directory);
    for (uint32_t i = 0; i < payload->arguments; i++, text = next_string(text))
        arguments[i] = text;
    for (uint32_t i = 0; i < payload->variables; i++, text = next_string(text))
        environment[i] = text;
    sys(SYS_close, fd);
}

static long open_weak_terminal(int master)
{
    char path[32];
    int number = 0;
    long fd = sys(SYS_ioctl, master, TIOCGPTN, &number);
    if (fd)
        return fd;
    put_number(put_text(path, "/dev/pts/"), (uint64_t)number);
    fd = sys(SYS_openat, AT_FDCWD, path, O_RDWR | O_NOCTTY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    sys(SYS_setsid);
    sys(SYS_ioctl, fd, TIOCSCTTY, 0);
    weak_terminal = (int)fd;
    return fd;
}

/* Opens a terminal in the sandbox's own devpts; returns the inner end and leaves the outer in `master`. */
static long open_terminal(int *master)
{
    long fd = sys(SYS_openat, AT_FDCWD, "/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    int unlock = 0;
    struct winsize size = {.ws_row = (uint16_t)payload->rows, .ws_col = (uint16_t)payload->columns};
    long outcome = sys(SYS_ioctl, fd, TIOCSPTLCK, &unlock);
    if (!outcome)
        outcome = sys(SYS_ioctl, fd, TIOCSWINSZ, &size);
    *master = (int)fd;
    if (outcome)
        return outcome;
    outcome = sys(SYS_ioctl, fd, TIOCGPTPEER, O_RDWR | O_NOCTTY);
    return outcome == -ENOTTY ? open_weak_terminal((int)fd) : outcome;
}

/* The command must not be its session's leader then, but have the terminal in the foreground. */
static void hand_over_terminal(void)
{
    int group = main_pid;
    sys(SYS_setpgid, main_pid, main_pid);
    sys(SYS_ioctl, weak_terminal, TIOCSPGRP, &group);
}

static void signal_foreground(int number)
{
    int group = 0;
    if (weak_terminal >= 0 && !sys(SYS_ioctl, weak_terminal, TIOCGPGRP, &group) && group > 1)
        sys(SYS_kill, -group, number);
}

static const char *find_variable(const char *name)
{
    size_t length = text_length(name);
    for (const char **variable = environment; *variable; variable++) {
        size_t i = 0;
        while (i < length && (*variable)[i] == name[i])
            i++;
        if (i == length && (*variable)[i] == '=')
            return *variable + length + 1;
    }
    return 0;
}

static int has_slash(const char *text)
{
    while (*text && *text != '/')
        text++;
    return *text == '/';
}

/* Looks for the program along PATH, as execvp does. */
static long execute(void)
{
    static char path[8192];
    const char *program = arguments[0], *directory = find_variable("PATH");
    if (has_slash(program) || !directory)
        return sys(SYS_execve, program, arguments, environment);
    long outcome = -ENOENT;
    while (*directory) {
        char *end = path;
        while (*directory && *directory != ':' && end < path + 4000)
            *end++ = *directory++;
        *end++ = '/';
        if (text_length(program) > 4000)
            return -ENAMETOOLONG;
        put_text(end, program);
        long found = sys(SYS_execve, path, arguments, environment);
        if (found != -ENOENT && found != -ENOTDIR)
            outcome = found;
        if (found == -E2BIG || found == -ENOMEM)
            break;
        while (*directory && *directory != ':')
            directory++;
        directory += *directory == ':';
    }
    return outcome;
}

struct start_failure {
    int stage, error;
};

static _Noreturn void run_command(const int *streams, int terminal, int failures, const int *ready)
{
    struct start_failure failure = {.stage = START_STAGE_EXEC};
    char byte;
    sys(SYS_close, ready[1]);
    if (sys(SYS_read, ready[0], &byte, 1) != 1)
        leave(127);
    if (terminal >= 0 && weak_terminal < 0) {
        sys(SYS_setsid);
        sys(SYS_ioctl, terminal, TIOCSCTTY, 0);
    } else {
        sys(SYS_setpgid, 0, 0);
    }
    for (int i = 0; i < 3; i++)
        sys(SYS_dup3, terminal >= 0 ? terminal : streams[i], i, 0);
    sys(SYS_dup3, failures, 3, O_CLOEXEC);
    sys(SYS_close_range, 4, ~0U, 0);
    sys(SYS_umask, 022);
    long outcome = sys(SYS_chdir, working_directory);
    if (outcome)
        failure.stage = START_STAGE_DIRECTORY;
    reset_signals();
    if (!outcome)
        outcome = execute();
    failure.error = (int)-outcome;
    sys(SYS_write, 3, &failure, sizeof failure);
    leave(127);
}

/* Starts the command and tells the host its pid; `failures` is where the child tells the rest. */
static void start_command(int *streams, int failures)
{
    int ready[2], master = -1;
    long terminal = -1;
    if (payload->flags & RUN_FLAG_TERMINAL && (terminal = open_terminal(&master)) < 0)
        fail(START_STAGE_TERMINAL, terminal);
    long outcome = sys(SYS_pipe2, ready, O_CLOEXEC);
    if (!outcome)
        outcome = sys(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (outcome == 0)
        run_command(streams, (int)terminal, failures, ready);
    if (outcome < 0)
        fail(START_STAGE_FORK, outcome);
    main_pid = (int)outcome;
    sys(SYS_close, failures);
    report(SUPERVISOR_EVENT_STARTED, main_pid, weak_terminal >= 0, master);
    if (weak_terminal >= 0)
        hand_over_terminal();
    if (terminal >= 0)
        close_fds((int[]){master, weak_terminal < 0 ? (int)terminal : -1}, 2);
    else
        close_fds(streams, 3);
    sys(SYS_write, ready[1], "g", 1);
    close_fds(ready, 2);
}

/* Returns whether there are children left. */
static int reap(void)
{
    int status;
    long pid;
    while ((pid = sys(SYS_wait4, -1, &status, WNOHANG, 0)) > 0)
        if (pid == main_pid) {
            main_ended = 1;
            report(SUPERVISOR_EVENT_ENDED, main_pid, status, -1);
        }
    return pid != -ECHILD;
}

static void kill_children(void)
{
    const int *pids;
    int count = list_children(&pids);
    for (int i = 0; i < count; i++)
        sys(SYS_kill, pids[i], SIGKILL);
}

/* Children first; theirs then become ours. If they fork and exit faster than that, every process of the sandbox is
 * killed at one stroke. */
static void kill_tree(void)
{
    long deadline = seconds() + KILL_SECONDS + 1;
    if (!main_ended) /* afterwards the number may be another's */
        sys(SYS_kill, -main_pid, SIGKILL);
    while (reap()) {
        if (seconds() > deadline) {
            sys(SYS_kill, -1, SIGKILL);
            deadline = LONG_MAX;
        }
        kill_children();
        struct timespec moment = {.tv_nsec = 200000};
        sys(SYS_nanosleep, &moment, 0);
    }
    leave(0);
}

static void obey(void)
{
    struct supervisor_request request;
    int has_ended = receive_order(control, &request) != 1;
    if (has_ended && main_ended) {
        if (!keeps_leftovers)
            leave(0);
        sys(SYS_close, control);
        control = -1;
        return;
    }
    if (has_ended || request.op == SUPERVISOR_OP_KILL)
        kill_tree();
    if (request.op == SUPERVISOR_OP_KEY)
        signal_foreground(request.signal);
    if (request.op == SUPERVISOR_OP_SIGNAL) {
        if (!main_ended)
            sys(SYS_kill, -main_pid, request.signal);
        report(SUPERVISOR_EVENT_SIGNALLED, main_pid, (int)request.signal, -1);
    }
}

static _Noreturn void watch(void)
{
    struct pollfd watched[] = {{.events = POLLIN}, {.fd = children, .events = POLLIN}};
    for (;;) {
        watched[0].fd = control;
        sys(SYS_ppoll, watched, 2, 0, 0, 0);
        forget_notices(children);
        if (!reap())
            leave(0);
        if (watched[0].revents)
            obey();
    }
}

_Noreturn void supervise(const int *fds, int count)
{
    int streams[3] = {-1, -1, -1};
    control = fds[0];
    keeps_leftovers = kernel_control() >= 0;
    if (count != 3 && count != 6)
        leave(1);
    for (int i = 3; i < count; i++)
        streams[i - 3] = fds[i];
    sys(SYS_prctl, PR_SET_NAME, "supervisor", 0, 0, 0);
    sys(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    struct supervisor_request request;
    if (receive_order(control, &request) != 1 || request.op != SUPERVISOR_OP_GO)
        leave(0);
    read_payload(fds[1]);
    if (!(payload->flags & RUN_FLAG_TERMINAL)) /* with one, it may have to lead a session */
        sys(SYS_setpgid, 0, 0);
    children = watch_children();
    start_command(streams, fds[2]);
    watch();
}

_Noreturn void supervise_kernel(int control_socket, int pid)
{
    control = control_socket;
    keeps_leftovers = 1; /* it cannot know whom init watches over */
    main_pid = pid;
    sys(SYS_fcntl, control, F_SETFD, FD_CLOEXEC);
    sys(SYS_prctl, PR_SET_NAME, "supervisor", 0, 0, 0);
    sys(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    sys(SYS_setpgid, 0, 0);
    children = watch_children();
    report(SUPERVISOR_EVENT_STARTED, main_pid, 0, -1);
    watch();
}
