/* The jail: an own root built from empty, no privileges, and a reaper as pid 1.
 *
 * Zygotes are children of the reaper, so that one can die and be replaced while its sandboxes live on.
 * Nothing of the host is reachable from here but what the plan lists, read-only. */
#define _GNU_SOURCE
#include "jail.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "passing.h"
#include "seal.h"
#include "steps.h"
#include "zygote.h"

#define SCRATCH "/tmp" /* exists everywhere; covered in this mount namespace only */
#define OLD "/oldroot"
#define NEW "/newroot"
#define TREE_OPTIONS "mode=755,size=32m"

static char source_path[sizeof OLD + ATOLL_MAX_TEXT];
static char target_path[sizeof NEW + ATOLL_MAX_TARGET];

static long last_error(long outcome) { return outcome < 0 ? -errno : outcome; }

static long mount_scratch(void)
{
    if (mount("tmpfs", SCRATCH, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m"))
        return -errno;
    if (mkdir(SCRATCH OLD, 0755) || mkdir(SCRATCH NEW, 0755))
        return -errno;
    return last_error(mount("tmpfs", SCRATCH NEW, "tmpfs", MS_NOSUID | MS_NODEV, TREE_OPTIONS));
}

static long pivot_out(void)
{
    if (syscall(SYS_pivot_root, SCRATCH, SCRATCH OLD))
        return -errno;
    return last_error(chdir("/"));
}

static long set_attributes(const char *path, uint64_t set, unsigned flags)
{
    struct mount_attr attributes = {.attr_set = set};
    return last_error(syscall(SYS_mount_setattr, AT_FDCWD, path, flags, &attributes, sizeof attributes));
}

static long make_file(const char *path, mode_t mode)
{
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, mode);
    if (fd >= 0)
        fchmod(fd, mode); /* whatever the host's umask was */
    return last_error(fd);
}

static long make_text(const struct plan_entry *entry)
{
    long fd = make_file(target_path, entry->flags & PLAN_FLAG_EXECUTABLE ? 0755 : 0644);
    if (fd < 0)
        return fd;
    size_t length = strlen(entry->source);
    long outcome = write((int)fd, entry->source, length) == (ssize_t)length ? 0 : -EIO;
    close((int)fd);
    return outcome;
}

static long make_copy(const struct plan_entry *entry)
{
    int from = open(source_path, O_RDONLY | O_CLOEXEC);
    if (from < 0)
        return -errno;
    long to = make_file(target_path, entry->flags & PLAN_FLAG_EXECUTABLE ? 0555 : 0444);
    long outcome = to < 0 ? to : 1;
    while (outcome > 0)
        outcome = last_error(sendfile((int)to, from, 0, 1 << 20));
    close(from);
    if (to >= 0)
        close((int)to);
    return outcome;
}

static long make_mount_point(void)
{
    struct stat facts;
    if (stat(source_path, &facts))
        return -errno;
    if (S_ISDIR(facts.st_mode))
        return mkdir(target_path, 0755) && errno != EEXIST ? -errno : 0;
    long fd = make_file(target_path, 0644);
    if (fd >= 0)
        close((int)fd);
    return fd < 0 && fd != -EEXIST ? fd : 0;
}

static long make_bind(uint64_t attributes)
{
    long outcome = make_mount_point();
    if (outcome)
        return outcome;
    if (mount(source_path, target_path, 0, MS_BIND | MS_REC, 0))
        return -errno;
    return set_attributes(target_path, attributes, AT_RECURSIVE);
}

/* A bind mount shows the path it comes from in the mount table, for every sandbox to read; an overlay that
 * was given relative names does not. Two layers, because one alone is no overlay. */
static long make_overlay(void)
{
    int here = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long outcome = make_mount_point();
    if (!outcome && (mkdir(SCRATCH "/void", 0755) && errno != EEXIST))
        outcome = -errno;
    if (!outcome && mount(source_path, SCRATCH "/layer", 0, MS_BIND | MS_REC, 0))
        outcome = -errno;
    if (!outcome && chdir(SCRATCH))
        outcome = -errno;
    if (!outcome && mount("template", target_path, "overlay", MS_RDONLY | MS_NOSUID | MS_NODEV, "lowerdir=layer:void"))
        outcome = -errno;
    umount2(SCRATCH "/layer", MNT_DETACH);
    if (fchdir(here))
        outcome = -errno;
    close(here);
    return outcome;
}

static long make_template(void)
{
    long outcome = mkdir(SCRATCH, 0755) && errno != EEXIST ? -errno : 0;
    if (!outcome && (mkdir(SCRATCH "/layer", 0755) && errno != EEXIST))
        outcome = -errno;
    if (!outcome)
        outcome = make_overlay();
    if (outcome) /* a kernel without overlays for users: the tree is the same, its origin shows */
        outcome = make_bind(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    return outcome;
}

static long make_mask(void)
{
    if (mount(NEW "/.atoll/empty", target_path, 0, MS_BIND, 0))
        return -errno;
    return set_attributes(target_path, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, 0);
}

static long make_entry(const struct plan_entry *entry)
{
    switch (entry->op) {
    case PLAN_OP_DIRECTORY:
        return mkdir(target_path, 0755) && errno != EEXIST ? -errno : 0;
    case PLAN_OP_BIND:
        return make_bind(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    case PLAN_OP_DEVICE:
        return make_bind(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    case PLAN_OP_SYMLINK:
        return last_error(symlink(entry->source, target_path));
    case PLAN_OP_TEXT:
        return make_text(entry);
    case PLAN_OP_COPY:
        return make_copy(entry);
    case PLAN_OP_OVERLAY:
        return make_template();
    case PLAN_OP_MASK:
        return make_mask();
    default:
        return -EINVAL;
    }
}

static long make_tree(const struct plan_entry *plan, int count)
{
    umask(0);
    for (int i = 0; i < count; i++) {
        snprintf(source_path, sizeof source_path, OLD "%.*s", ATOLL_MAX_TEXT - 1, plan[i].source);
        snprintf(target_path, sizeof target_path, NEW "%.*s", ATOLL_MAX_TARGET - 1, plan[i].target);
        long outcome = make_entry(&plan[i]);
        if (outcome == -ENOENT && plan[i].flags & PLAN_FLAG_OPTIONAL)
            continue;
        if (outcome < 0)
            return outcome;
    }
    umask(022);
    return 0;
}

/* Unmasked, because the kernel lets a sandbox mount its own only where one is wholly visible. */
static long mount_jail_proc(void)
{
    return last_error(mount("proc", NEW "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, 0));
}

static long detach_host(void) { return last_error(umount2(OLD, MNT_DETACH)); }

static long pivot_in(void)
{
    if (chdir(NEW) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH))
        return -errno;
    return last_error(chdir("/"));
}

static long make_root_read_only(void)
{
    return set_attributes("/", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, 0);
}

static long become(uint32_t id)
{
    if (!id)
        return 0;
    /* Groups first, user last: the other way round the right to change groups is gone. */
    if (syscall(SYS_setgroups, 0, 0) || syscall(SYS_setresgid, id, id, id) || syscall(SYS_setresuid, id, id, id))
        return -errno;
    return 0;
}

static long drop_privileges(void)
{
    long outcome = clear_ambient_set();
    return outcome ? outcome : drop_capabilities();
}

static long use_jail_null(void)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    for (int standard = 0; standard < 3; standard++)
        if (dup2(fd, standard) < 0)
            return -errno;
    close(fd);
    return 0;
}

long enter_jail(const struct keeper_request *request, const struct plan_entry *plan, int count, int *failed)
{
#define DO(step, call) STEP(request, failed, STEP_JAIL_##step, call)
    DO(PRIVATE_MOUNTS, last_error(mount(0, "/", 0, MS_REC | MS_PRIVATE, 0)));
    DO(SCRATCH, mount_scratch());
    DO(PIVOT_OUT, pivot_out());
    DO(TREE, make_tree(plan, count));
    DO(PROC, mount_jail_proc());
    DO(DETACH_HOST, detach_host());
    DO(PIVOT_IN, pivot_in());
    DO(TREE, use_jail_null());
    DO(READ_ONLY, make_root_read_only());
    /* While still root: the bounding set needs a capability that the next step takes away. */
    DO(CAPABILITIES, lock_securebits());
    DO(CAPABILITIES, drop_bounding_set());
    DO(IDS, become(request->uid));
    DO(CAPABILITIES, drop_privileges());
    DO(NO_NEW_PRIVILEGES, last_error(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)));
#undef DO
    return 0;
}

/* Returns how many lines of a file there are in `lines`, of which the last is followed by NULL. */
static int read_lines(const char *path, char *text, size_t room, char **lines, int most)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC), count = 0;
    ssize_t length = fd < 0 ? -1 : read(fd, text, room - 1);
    close(fd);
    text[length > 0 ? length : 0] = 0;
    for (char *line = strtok(text, "\n"); line && count < most - 1; line = strtok(0, "\n"))
        lines[count++] = line;
    lines[count] = 0;
    return count;
}

/* Turns into the template's interpreter, which loads the spawn path as a library and serves as this one would.
 * One file has its program, the name that it goes by and its arguments, another its environment; nothing else of the
 * host's reaches it. */
static _Noreturn void exec_interpreter(int control, int filter)
{
    static char text[2][8192];
    char *arguments[16], *environment[64];
    if (read_lines("/.atoll/interpreter", text[0], sizeof text[0], arguments, 16) < 2)
        _exit(1);
    read_lines("/.atoll/environment", text[1], sizeof text[1], environment, 64);
    /* Above the two, so that neither is overwritten before it is moved. */
    control = fcntl(control, F_DUPFD, 10);
    filter = fcntl(filter, F_DUPFD, 10);
    if (dup2(control, 3) != 3 || dup2(filter, 4) != 4 || close_range(5, ~0U, 0))
        _exit(1);
    execve(arguments[0], arguments + 1, environment);
    _exit(1);
}

static const struct keeper_request *made_from;
static int jail_control, signals;

/* Returns the pid, or -errno. */
static long start_zygote(int control, int filter, int interpreter)
{
    long pid = step_fails(made_from, STEP_ZYGOTE_START) ? -EIO : last_error(fork());
    if (pid)
        return pid;
    if (interpreter)
        exec_interpreter(control, filter);
    close(jail_control);
    close(signals);
    serve_zygote(control, filter, made_from);
}

static void reap(const pid_t *zygotes, int count)
{
    struct jail_message ended = {.op = JAIL_OP_ZYGOTE_ENDED};
    while ((ended.pid = waitpid(-1, &ended.status, WNOHANG)) > 0)
        for (int i = 0; i < count; i++)
            if (zygotes[i] == ended.pid)
                send_message(jail_control, &ended, sizeof ended, -1);
}

#define ZYGOTES 64

static void answer(pid_t *zygotes, int *next)
{
    struct jail_message message;
    int fds[PASSING_MOST], count;
    long length = receive_message(jail_control, &message, sizeof message, fds, &count);
    if (length <= 0)
        _exit(0); /* nobody owns this jail any more: its whole pid namespace ends with us */
    long pid = -EPROTO;
    if (length == sizeof message && message.op == JAIL_OP_ZYGOTE && count == 2)
        pid = start_zygote(fds[0], fds[1], (int)message.interpreter);
    zygotes[(*next)++ % ZYGOTES] = (pid_t)pid;
    for (int i = 0; i < count; i++)
        close(fds[i]);
    message.pid = (int32_t)pid;
    send_message(jail_control, &message, sizeof message, -1);
}

_Noreturn void serve_jail(int control, const struct keeper_request *request)
{
    static pid_t zygotes[ZYGOTES];
    int next = 0;
    sigset_t set;
    sigfillset(&set);
    sigprocmask(SIG_BLOCK, &set, 0);
    made_from = request;
    jail_control = control;
    signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    struct pollfd watched[] = {{.fd = control, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
    for (;;) {
        if (poll(watched, 2, -1) < 0)
            continue;
        struct signalfd_siginfo info;
        while (read(signals, &info, sizeof info) == sizeof info)
            continue;
        reap(zygotes, ZYGOTES);
        if (watched[0].revents)
            answer(zygotes, &next);
    }
}
