/* The keeper: the one process of an engine that keeps whatever privilege the engine was started with.
 *
 * It makes jails and detached mounts, and parses nothing but fixed-size requests. There are two ways to start it:
 *
 *   keeper OWNER root|user CONTROL                 belongs to a program: when that is gone, by whatever death, the
 *                                                  keeper ends every jail and with it every sandbox, and removes
 *                                                  what the kernel does not remove by itself.
 *   keeper LEASE_MS root|user LISTENER LOCK        lasts: belongs to whoever is connected, one at a time and of its
 *                                                  own user. When nobody is, it waits so long for the next one
 *                                                  before it ends all. Meanwhile it holds descriptors by name
 *                                                  (shelf.c). The lock is held until it is gone.
 *
 * "root" or "user" says whether there is root to keep. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "images.h"
#include "jail.h"
#include "passing.h"
#include "shelf.h"
#include "signals.h"
#include "steps.h"

#define CONTROL 3
#define LISTENER 4
#define LOCK 5
#define SWEEPS 16
#define JAILS 64
#define MOST_DESCRIPTORS (1 << 20)
#define SEND_SECONDS 10
#define FIRST_MS 10000 /* who started it has yet to connect */

static int rootless, lasting, ending;
static char *sweeps[SWEEPS];
static int sweep_count;
static pid_t jails[JAILS];
static int jail_count;

static int write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t written = write(fd, text, strlen(text));
    int outcome = written == (ssize_t)strlen(text) ? 0 : -errno;
    close(fd);
    return outcome;
}

static int write_map(const char *path, unsigned inside, unsigned outside)
{
    char text[64];
    snprintf(text, sizeof text, "%u %u 1", inside, outside);
    return write_file(path, text);
}

/* Without root: an own user namespace, where the keeper may mount, and nothing else changes. */
static int enter_user_namespace(void)
{
    unsigned uid = geteuid(), gid = getegid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
        return -errno;
    int outcome = write_file("/proc/self/setgroups", "deny");
    if (!outcome)
        outcome = write_map("/proc/self/uid_map", uid, uid);
    if (!outcome)
        outcome = write_map("/proc/self/gid_map", gid, gid);
    if (!outcome && mount(0, "/", 0, MS_REC | MS_SLAVE, 0))
        outcome = -errno;
    return outcome;
}

static _Noreturn void jail_main(const struct keeper_request *request, const struct plan_entry *plan, int control,
                                int report)
{
    struct step_reply reply = {0};
    long outcome = enter_jail(request, plan, (int)request->plan_entries, &reply.step);
    if (outcome) {
        reply.error = (int)-outcome;
    } else {
        reply.step = STEP_NONE;
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* after the change of ids, which clears it */
        prctl(PR_SET_NAME, "atoll-jail");
    }
    if (write(report, &reply, sizeof reply) != sizeof reply || outcome)
        _exit(1);
    /* Nothing that was open outside stays open inside. */
    if (dup2(control, CONTROL) < 0 || close_range(CONTROL + 1, ~0U, 0))
        _exit(1);
    fcntl(CONTROL, F_SETFD, FD_CLOEXEC);
    serve_jail(CONTROL, request);
}

static struct step_reply make_jail(const struct keeper_request *request, int plan_fd, int control)
{
    struct step_reply reply = {.step = STEP_JAIL_NAMESPACES, .error = EINVAL};
    size_t bytes = request->plan_entries * sizeof(struct plan_entry);
    struct stat facts;
    if (jail_count == JAILS || fstat(plan_fd, &facts) || facts.st_size != (off_t)bytes || !bytes)
        return reply;
    struct plan_entry *plan = mmap(0, bytes, PROT_READ, MAP_PRIVATE, plan_fd, 0);
    int report[2];
    if (plan == MAP_FAILED || pipe2(report, O_CLOEXEC)) {
        reply.error = errno;
        return reply;
    }
    int flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | SIGCHLD;
    long pid = step_fails(request, STEP_JAIL_NAMESPACES) ? -EIO : sys(SYS_clone, flags, 0, 0, 0, 0);
    if (pid == 0)
        jail_main(request, plan, control, report[1]);
    close(report[1]);
    reply.error = pid < 0 ? (int)-pid : EPIPE;
    if (pid > 0 && read(report[0], &reply, sizeof reply) == sizeof reply && !reply.error) {
        reply.pid = (int)pid;
        jails[jail_count++] = (pid_t)pid;
    } else if (pid > 0) {
        waitpid((pid_t)pid, 0, 0);
    }
    close(report[0]);
    munmap(plan, bytes);
    return reply;
}

/* A user namespace in which the directory's owner is the sandbox's id: mounts through it show the
 * owner's files as the sandbox's own, on disk they stay the owner's. */
static int make_id_map(const struct stat *owner, uint32_t sandbox_id)
{
    int ready[2], done[2];
    if (pipe2(ready, O_CLOEXEC) || pipe2(done, O_CLOEXEC))
        return -errno;
    pid_t pid = fork();
    if (pid == 0) {
        char byte = 0;
        close(done[1]);
        if (unshare(CLONE_NEWUSER) || write(ready[1], "r", 1) != 1)
            _exit(1);
        (void)!read(done[0], &byte, 1); /* lives until its namespace has been opened */
        _exit(0);
    }
    close(ready[1]);
    close(done[0]);
    char byte, path[64];
    int outcome = -EPERM;
    if (pid > 0 && read(ready[0], &byte, 1) == 1) {
        snprintf(path, sizeof path, "/proc/%d/uid_map", pid);
        outcome = write_map(path, owner->st_uid, sandbox_id);
        snprintf(path, sizeof path, "/proc/%d/gid_map", pid);
        if (!outcome)
            outcome = write_map(path, owner->st_gid, sandbox_id);
        snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
        if (!outcome && (outcome = open(path, O_RDONLY | O_CLOEXEC)) < 0)
            outcome = -errno;
    }
    close(ready[0]);
    close(done[1]);
    if (pid > 0)
        waitpid(pid, 0, 0);
    return outcome;
}

static int open_source(const char *path)
{
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    return fd < 0 ? -errno : fd;
}

static int set_mount_attributes(int mount_fd, const struct keeper_request *request, const struct stat *owner)
{
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    if (!request->writable)
        attributes.attr_set |= MOUNT_ATTR_RDONLY;
    int id_map = -1;
    if (!rootless && request->uid) {
        if ((id_map = make_id_map(owner, request->uid)) < 0)
            return id_map;
        attributes.attr_set |= MOUNT_ATTR_IDMAP;
        attributes.userns_fd = (uint64_t)id_map;
    }
    long outcome = syscall(SYS_mount_setattr, mount_fd, "", AT_EMPTY_PATH, &attributes, sizeof attributes);
    int error = outcome ? -errno : 0;
    if (id_map >= 0)
        close(id_map);
    return error;
}

static int clone_mount(const char *path)
{
    int source = open_source(path);
    if (source < 0)
        return source;
    int mount_fd = (int)syscall(SYS_open_tree, source, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (mount_fd < 0)
        mount_fd = -errno;
    close(source);
    return mount_fd;
}

/* Returns a detached mount of a host directory, or of a workspace's image if there is one, or -errno. */
static int open_mount(const struct keeper_request *request, int image)
{
    int mount_fd = image < 0 ? clone_mount(request->path) : mount_image(image);
    if (mount_fd < 0)
        return mount_fd;
    struct stat owner;
    int outcome = fstat(mount_fd, &owner) ? -errno : set_mount_attributes(mount_fd, request, &owner);
    if (outcome) {
        close(mount_fd);
        return outcome;
    }
    return mount_fd;
}

static void note_sweep(const char *path, struct step_reply *reply)
{
    for (int i = 0; i < sweep_count; i++)
        if (!strcmp(sweeps[i], path))
            *reply = (struct step_reply){0};
    if (reply->error && sweep_count < SWEEPS) {
        sweeps[sweep_count++] = strdup(path);
        *reply = (struct step_reply){0};
    }
}

static void answer_request(struct keeper_request *request, const int *fds, int count)
{
    int passed = -1;
    struct step_reply reply = {.error = EPROTO};
    request->path[sizeof request->path - 1] = 0;
    if (request->op == KEEPER_OP_JAIL && count == 2) {
        reply = make_jail(request, fds[0], fds[1]);
    } else if (request->op == KEEPER_OP_MOUNT) {
        passed = open_mount(request, count ? fds[0] : -1);
        reply = (struct step_reply){.step = STEP_MOUNTS, .error = passed < 0 ? -passed : 0};
    } else if (request->op == KEEPER_OP_SWEEP) {
        note_sweep(request->path, &reply);
    }
    if (send_message(CONTROL, &reply, sizeof reply, passed) < 0)
        shutdown(CONTROL, SHUT_RDWR); /* who does not read answers must not hold up the next one */
    if (passed >= 0)
        close(passed);
}

/* Returns how many of the descriptors it took over. */
static int use_shelf(struct kept_entry *entry, const int *fds, int count)
{
    entry->name[sizeof entry->name - 1] = entry->note[sizeof entry->note - 1] = 0;
    if (entry->op == KEEPER_OP_KEEP) {
        shelf_keep(entry, fds, count);
        return count;
    }
    if (entry->op == KEEPER_OP_FORGET)
        shelf_forget(entry->name);
    else if (entry->op == KEEPER_OP_RECALL && shelf_recall(CONTROL))
        shutdown(CONTROL, SHUT_RDWR); /* who does not read it cannot be told more */
    else if (entry->op == KEEPER_OP_END)
        ending = 1;
    return 0;
}

/* Sees to one message; returns whether there may be another. */
static int answer(void)
{
    static union {
        struct keeper_request request;
        struct kept_entry entry;
    } message;
    int fds[PASSING_MOST], count, taken = 0;
    long length = receive_message(CONTROL, &message, sizeof message, fds, &count);
    /* A reset comes before what was said last, which still counts. */
    if (length <= 0)
        return length == -ECONNRESET || length == -EINTR;
    if (length == sizeof message.request)
        answer_request(&message.request, fds, count);
    else if (lasting && length == sizeof message.entry)
        taken = use_shelf(&message.entry, fds, count);
    for (int i = taken; i < count; i++)
        close(fds[i]);
    return 1;
}

static void thaw_children(const char *path)
{
    DIR *directory = opendir(path);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        char state[ATOLL_MAX_PATH + 280];
        snprintf(state, sizeof state, "%s/%s/freezer.state", path, entry->d_name);
        write_file(state, "THAWED");
    }
    if (directory)
        closedir(directory);
}

static void end_jails(void)
{
    for (int i = 0; i < jail_count; i++)
        kill(jails[i], SIGKILL);
    /* A frozen process of the older cgroups does not even die. */
    for (int i = 0; i < sweep_count; i++)
        thaw_children(sweeps[i]);
    for (int i = 0; i < jail_count; i++)
        waitpid(jails[i], 0, 0);
}

static int remove_children(const char *path)
{
    DIR *directory = opendir(path);
    int left = 0;
    if (!directory)
        return 0;
    for (struct dirent *entry; (entry = readdir(directory));)
        if (entry->d_type == DT_DIR && entry->d_name[0] != '.')
            left |= unlinkat(dirfd(directory), entry->d_name, AT_REMOVEDIR) && errno != ENOENT;
    closedir(directory);
    return left;
}

/* Cgroup directories stay until their last process is wholly gone, which takes the kernel a moment. */
static void sweep(const char *path)
{
    for (int attempt = 0; attempt < 200; attempt++) {
        if (!remove_children(path) && (!rmdir(path) || errno == ENOENT))
            return;
        usleep(10000);
    }
}

static void reap_jails(void)
{
    for (int i = 0; i < jail_count;)
        if (waitpid(jails[i], 0, WNOHANG) == jails[i])
            jails[i] = jails[--jail_count];
        else
            i++;
}

/* Moves `count` passed descriptors to their places and closes all others. */
static int take_descriptors(char **numbers, int count)
{
    int moved[2];
    for (int i = 0; i < count; i++)
        if ((moved[i] = fcntl(atoi(numbers[i]), F_DUPFD, 64)) < 0)
            return -errno;
    int first = lasting ? LISTENER : CONTROL;
    for (int i = 0; i < count; i++)
        if (dup3(moved[i], first + i, O_CLOEXEC) < 0)
            return -errno;
    close_range((unsigned)(first + count), ~0U, 0);
    return 0;
}

/* --- belonging to a program ------------------------------------------------------------------------- */

static int serve_owner(pid_t owner_pid)
{
    int owner = (int)syscall(SYS_pidfd_open, owner_pid, 0);
    if (owner < 0 || getppid() != owner_pid)
        return 2;
    int outcome = rootless ? enter_user_namespace() : 0;
    struct step_reply hello = {.step = outcome ? STEP_JAIL_USER_NAMESPACE : STEP_NONE, .error = -outcome};
    if (send_message(CONTROL, &hello, sizeof hello, -1) < 0 || outcome)
        return 1;
    struct pollfd watched[] = {{.fd = CONTROL, .events = POLLIN}, {.fd = owner, .events = POLLIN}};
    for (;;) {
        if (poll(watched, 2, 1000) < 0)
            continue;
        reap_jails();
        if (watched[1].revents || watched[0].revents & (POLLHUP | POLLERR))
            return 0;
        if (watched[0].revents & POLLIN)
            answer();
    }
}

/* --- lasting ---------------------------------------------------------------------------------------- */

static int64_t milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now); /* a lease goes on while the machine sleeps */
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static uint32_t raise_descriptor_limit(void)
{
    struct rlimit limit = {MOST_DESCRIPTORS, MOST_DESCRIPTORS};
    if (setrlimit(RLIMIT_NOFILE, &limit)) {
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    return (uint32_t)limit.rlim_cur;
}

static int is_own_user(int socket)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    return !getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.uid == geteuid();
}

/* Lets the next one in, or tells it why not; returns whether anybody is connected now. */
static int admit(int connected, struct keeper_hello hello)
{
    int fd = accept4(LISTENER, 0, 0, SOCK_CLOEXEC);
    if (fd < 0)
        return connected;
    struct timeval patience = {.tv_sec = SEND_SECONDS};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (!hello.error)
        hello.error = !is_own_user(fd) ? EACCES : connected ? EBUSY : 0;
    send_message(fd, &hello, sizeof hello, -1);
    if (!hello.error && fd != CONTROL)
        dup3(fd, CONTROL, O_CLOEXEC);
    if (hello.error || fd != CONTROL)
        close(fd);
    return connected || !hello.error;
}

static void serve_nodes(int64_t lease_ms, const struct keeper_hello *hello)
{
    int connected = 0;
    int64_t deadline = milliseconds() + (lease_ms > FIRST_MS ? lease_ms : FIRST_MS);
    while (!ending && (connected || milliseconds() < deadline)) {
        struct pollfd watched[] = {{.fd = connected ? CONTROL : -1, .events = POLLIN},
                                   {.fd = LISTENER, .events = POLLIN}};
        int64_t left = deadline - milliseconds();
        poll(watched, 2, connected || left > 1000 ? 1000 : left > 0 ? (int)left : 0);
        reap_jails();
        if (watched[0].revents && !answer()) {
            close(CONTROL);
            connected = 0;
            deadline = milliseconds() + lease_ms;
        } else if (watched[1].revents) {
            connected = admit(connected, *hello);
        }
    }
}

static int last(int64_t lease_ms)
{
    /* Nobody's child, so that nothing that ends the program which started it ends this one. */
    pid_t pid = fork();
    if (pid)
        return pid < 0;
    setsid();
    int outcome = rootless ? enter_user_namespace() : 0;
    struct keeper_hello hello = {.version = ATOLL_VERSION,
                                 .step = outcome ? STEP_JAIL_USER_NAMESPACE : STEP_NONE,
                                 .error = -outcome,
                                 .pid = getpid(),
                                 .most_descriptors = raise_descriptor_limit()};
    struct pollfd listener = {.fd = LISTENER, .events = POLLIN};
    if (outcome && poll(&listener, 1, SEND_SECONDS * 1000) > 0)
        admit(0, hello);
    else if (!outcome)
        serve_nodes(lease_ms, &hello);
    close(LISTENER); /* whoever comes now has to wait for the lock */
    return 0;
}

int main(int argc, char **argv)
{
    lasting = argc == 5;
    if ((argc != 4 && !lasting) || take_descriptors(argv + 3, argc - 3))
        return 2;
    reset_signals();
    /* A new session: the owner's terminal must not be reachable as /dev/tty from inside. */
    setsid();
    prctl(PR_SET_NAME, "atoll-keeper");
    rootless = !strcmp(argv[2], "user");
    int code = lasting ? last(atoll(argv[1])) : serve_owner((pid_t)atoi(argv[1]));
    end_jails();
    for (int i = 0; i < sweep_count; i++)
        sweep(sweeps[i]);
    return code;
}
