/* Pid 1 of every sandbox: reaps, forks what the host asks for, and watches over the kernel that was born with it
 * (kernel.c). It waits for nobody but those it has killed, and never ends by itself; when its control socket does, so does
 * the sandbox.
 *
 * Everything that runs in the sandbox descends from this process and inherits its filter, its lack of
 * privileges and its namespaces: there is no second door. Code inside cannot signal it (pid 1 has no
 * handlers), nor trace it or open its memory (it is not dumpable).
 *
 * A supervisor that is killed from inside could leave behind what it was to watch. So if one ends in any way
 * but its own, every process of the sandbox is killed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#include "guest.h"
#include "wire.h"
#include "start.h"
#include "supervision.h"

#define CONTROL 3
#define KERNEL_CONTROL 4
#define MOST_FORKED 4096
#define CONNECT_SECONDS 5
#define MOMENT_NANOSECONDS 200000

/* Those that init has forked; all other children of it are orphans, or the kernel that was there before.
 *
 * Init keeps the control socket of a supervisor until it has noticed its end. So the host hears of an end only after
 * all that has to be killed for it: what it starts next is not killed as well. */
static struct forked {
    int pid, is_supervisor, kept; /* 0: none */
} forked[MOST_FORKED];
static int forked_end; /* all are before this one */
static uint64_t open_files[2];

_Noreturn void leave(int code)
{
    for (;;)
        sys(SYS_exit_group, code);
}

static void block_signals(void)
{
    uint64_t all = ~0ULL;
    sys(SYS_rt_sigprocmask, SIG_BLOCK, &all, 0, sizeof all);
}

static struct forked *find_forked(int pid)
{
    for (int i = 0; i < forked_end; i++)
        if (forked[i].pid == pid)
            return &forked[i];
    return 0;
}

static struct forked *find_room(void)
{
    struct forked *room = find_forked(0);
    if (!room && forked_end < MOST_FORKED)
        room = &forked[forked_end++];
    return room;
}

int is_forked_by_init(int pid) { return find_forked(pid) != 0; }

/* All supervisors go as well, and are none any more at once: when their ends are noticed later, nobody who was started
 * since is to be killed for them. */
void kill_everything(void)
{
    sys(SYS_kill, -1, SIGKILL);
    for (int i = 0; i < forked_end; i++)
        forked[i].is_supervisor = 0;
}

static void wake_supervisors(void)
{
    for (int i = 0; i < forked_end; i++)
        if (forked[i].is_supervisor)
            sys(SYS_kill, forked[i].pid, SIGCONT);
}

static int reap(void);

/* While they die they count, and what the host starts next would find no room. Orphans come to pid 1, so without children it
 * is alone. */
static void await_deaths(void)
{
    const struct timespec moment = {.tv_nsec = MOMENT_NANOSECONDS};
    long deadline = seconds() + KILL_SECONDS + 1;
    while (reap() && seconds() < deadline)
        sys(SYS_nanosleep, &moment, 0);
}

/* Returns whether there are children left. */
static int reap(void)
{
    int status;
    long pid;
    while ((pid = sys(SYS_wait4, -1, &status, WNOHANG, 0)) > 0) {
        struct forked *child = find_forked((int)pid);
        if (!child) {
            note_end_of_kernel((int)pid, status);
            continue;
        }
        struct forked ended = *child;
        *child = (struct forked){0};
        if (ended.is_supervisor && status) {
            kill_everything();
            await_deaths(); /* of which none is a supervisor any more */
        }
        if (ended.kept)
            sys(SYS_close, ended.kept);
    }
    return pid != -ECHILD;
}

static void refuse(const struct init_request *request, int socket, long error)
{
    struct step_reply reply = {.error = (int32_t)-error};
    struct files_reply no_files = {.error = (int32_t)-error};
    struct supervisor_report report = {
        .event = SUPERVISOR_EVENT_FAILED, .pid = START_STAGE_FORK, .status = (int32_t)-error};
    if (request->op == INIT_OP_RUN)
        send_message(socket, &report, sizeof report, -1);
    else if (request->op == INIT_OP_FILES)
        send_message(socket, &no_files, sizeof no_files, -1);
    else
        send_message(socket, &reply, sizeof reply, -1);
}

/* Where a listener accepts nobody, connecting would keep a process here for two minutes. */
static long connect_in_time(long fd, const void *address, size_t size)
{
    struct timeval patience = {.tv_sec = CONNECT_SECONDS}, endless = {0};
    sys(SYS_setsockopt, fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    long outcome = sys(SYS_connect, fd, address, size);
    sys(SYS_setsockopt, fd, SOL_SOCKET, SO_SNDTIMEO, &endless, sizeof endless);
    return outcome == -EINPROGRESS ? -ETIMEDOUT : outcome;
}

static long open_port(const struct init_request *request, int listening)
{
    long fd = sys(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    int yes = 1;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = __builtin_bswap16((uint16_t)request->port),
                                  .sin_addr.s_addr = __builtin_bswap32(request->address)};
    long outcome;
    if (listening) {
        sys(SYS_setsockopt, fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        outcome = sys(SYS_bind, fd, &address, sizeof address);
        if (!outcome)
            outcome = sys(SYS_listen, fd, 128);
    } else {
        outcome = connect_in_time(fd, &address, sizeof address);
    }
    if (!outcome)
        return fd;
    sys(SYS_close, fd);
    return outcome;
}

static long connect_6(const struct init_request *request)
{
    long fd = sys(SYS_socket, AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = __builtin_bswap16((uint16_t)request->port)};
    address.sin6_addr.s6_addr[15] = 1;
    long outcome = connect_in_time(fd, &address, sizeof address);
    return outcome ? outcome : fd;
}

static void hand_out(long fd, int socket)
{
    struct step_reply reply = {.error = fd < 0 ? (int32_t)-fd : 0};
    send_message(socket, &reply, sizeof reply, fd < 0 ? -1 : (int)fd);
}

static _Noreturn void connect_port(const struct init_request *request, int socket)
{
    long fd = open_port(request, 0);
    if (fd == -ECONNREFUSED)
        fd = connect_6(request);
    hand_out(fd, socket);
    leave(0);
}

/* At once: unlike connecting it never waits, and every sandbox with a network needs one. */
static void listen_on_port(const struct init_request *request, int socket)
{
    long fd = open_port(request, 1);
    hand_out(fd, socket);
    if (fd >= 0)
        sys(SYS_close, fd);
}

static void close_kept(void)
{
    for (int i = 0; i < forked_end; i++)
        if (forked[i].kept)
            sys(SYS_close, forked[i].kept);
}

static _Noreturn void serve(const struct init_request *request, const int *fds, int count)
{
    close_fds((int[]){CONTROL, kernel_control()}, 2);
    close_kept();
    switch (request->op) {
    case INIT_OP_RUN:
        supervise(fds, count);
    case INIT_OP_FILES:
        serve_files(fds[0]);
    case INIT_OP_CONNECT:
        connect_port(request, fds[0]);
    default:
        leave(1);
    }
}

/* Unless init had no room left then for what the host sends next. */
static int keep(int *fd)
{
    int kept = *fd;
    if ((uint64_t)kept + 2 * PASSING_MOST >= open_files[0])
        return 0;
    *fd = -1;
    return kept;
}

static void start(const struct init_request *request, int *fds, int count)
{
    struct forked *child = find_room();
    if (!child) {
        refuse(request, fds[0], -EAGAIN);
        return;
    }
    long pid = sys(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0)
        serve(request, fds, count);
    if (pid < 0)
        refuse(request, fds[0], pid);
    else if (request->op == INIT_OP_RUN)
        *child = (struct forked){.pid = (int)pid, .is_supervisor = 1, .kept = keep(&fds[0])};
    else
        *child = (struct forked){.pid = (int)pid};
}

static void answer(void)
{
    struct init_request request;
    int fds[PASSING_MOST], count;
    long length = receive_message(CONTROL, &request, sizeof request, fds, &count);
    if (length <= 0 && length != -EAGAIN && length != -EINTR)
        leave(0); /* nobody owns this sandbox any more */
    if (length == sizeof request && request.op == INIT_OP_KILL_ALL) {
        kill_everything();
        give_up_kernel();
    } else if (length == sizeof request && request.op == INIT_OP_WAKE) {
        wake_supervisors();
    } else if (length == sizeof request && count > 0 && request.op == INIT_OP_LISTEN) {
        listen_on_port(&request, fds[0]);
    } else if (length == sizeof request && count > 0) {
        start(&request, fds, count);
    }
    close_fds(fds, count);
}

/* While it still owns its files in /proc: afterwards their modes alone would keep it out. */
static int32_t try_to_write_proc(void)
{
    long fd = sys(SYS_openat, AT_FDCWD, "/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return (int32_t)-fd;
    sys(SYS_close, fd);
    return 0;
}

static int32_t read_number(const char *path)
{
    char text[16] = {0};
    long fd = sys(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    long length = fd < 0 ? fd : sys(SYS_read, fd, text, sizeof text - 1);
    sys(SYS_close, fd);
    int32_t number = length > 0 ? 0 : -1;
    for (const char *at = text; *at >= '0' && *at <= '9'; at++)
        number = number * 10 + *at - '0';
    return number;
}

static void say_hello(int32_t proc_write)
{
    struct init_hello hello = {.version = ATOLL_VERSION, .proc_write = proc_write};
    struct utsname names;
    hello.probe = (int32_t)-sys(ATOLL_PROBE_CALL);
    hello.io_uring = (int32_t)-sys(SYS_io_uring_setup, 0, 0);
    hello.dumpable = (int32_t)sys(SYS_prctl, PR_GET_DUMPABLE, 0, 0, 0, 0);
    hello.securebits = (int32_t)sys(SYS_prctl, PR_GET_SECUREBITS, 0, 0, 0, 0);
    hello.user_namespaces = read_number("/proc/sys/user/max_user_namespaces");
    hello.landlock = (int32_t)sys(SYS_landlock_create_ruleset, 0, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (!sys(SYS_uname, &names))
        for (size_t i = 0; i < sizeof hello.hostname - 1 && names.nodename[i]; i++)
            hello.hostname[i] = names.nodename[i];
    send_message(CONTROL, &hello, sizeof hello, -1);
}

static int parse_number(const char *text)
{
    int number = 0;
    while (*text >= '0' && *text <= '9')
        number = number * 10 + *text++ - '0';
    return number;
}

static _Noreturn void watch(void)
{
    int children = watch_children();
    struct pollfd watched[] = {{.fd = CONTROL, .events = POLLIN}, {.fd = children, .events = POLLIN}, {.events = POLLIN}};
    for (;;) {
        forget_notices(children);
        reap();
        tend_kernel();
        watched[2].fd = kernel_orders();
        sys(SYS_ppoll, watched, 3, kernel_pause(), 0, 0);
        if (watched[0].revents)
            answer();
        if (watched[2].revents)
            obey_for_kernel();
    }
}

/* Started as "init" or as "supervisor", with the number of the kernel to watch over, or 0. */
_Noreturn void start_program(const long *start)
{
    const char *role = (const char *)start[1];
    int pid = start[0] > 1 ? parse_number((const char *)start[2]) : 0;
    block_signals();
    sys(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, open_files);
    int32_t proc_write = try_to_write_proc();
#ifndef ATOLL_DUMPABLE_INIT /* a testing build shows that it matters */
    sys(SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
#endif
    if (role[0] == 's')
        supervise_kernel(CONTROL, pid);
    sys(SYS_fcntl, CONTROL, F_SETFD, FD_CLOEXEC);
    say_hello(proc_write);
    if (pid) {
        sys(SYS_fcntl, KERNEL_CONTROL, F_SETFD, FD_CLOEXEC);
        adopt_kernel(KERNEL_CONTROL, pid);
    }
    watch();
}
