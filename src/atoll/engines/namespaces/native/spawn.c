/* Makes a sandbox from an unprivileged, jailed process.
 *
 * The child is cloned with all namespaces while it shares the zygote's memory, vfork-style, so that no
 * page table is copied. It sets itself up step by step with raw system calls only, gives up every
 * privilege, and turns into the static init. If a step fails, nothing of the user's has run yet. */
#define _GNU_SOURCE
#include "spawn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if.h>
#include <linux/keyctl.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/ioctl.h>

#include "cloning.h"
#include "descriptors.h"
#include "identity.h"
#include "interpreter.h"
#include "passing.h"
#include "proc_files.h"
#include "sandbox_limits.h"
#include "sandbox_mounts.h"
#include "seal.h"
#include "steps.h"

#define NAMESPACES \
    (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)

/* One spawn at a time; the child shares this memory while the zygote waits for it. */
static const struct spawn_request *request;
static const int *passed;
static int entries[PASSING_MOST];
static int entry_count;
/* Volatile: the child writes them while the parent waits in a call, which the compiler cannot know. */
static volatile int failed_step;
static volatile long failed_error;
static char stack[STACK_BYTES] __attribute__((aligned(64)));
static char supervisor_stack[STACK_BYTES] __attribute__((aligned(64)));
static int kernel_pid;

static int boot_socket(void) { return passed[0]; }
static const int *cgroup_fds(void) { return passed + 1; }
static const int *mount_fds(void) { return passed + 1 + request->cgroup_fds; }
/* One that joins finds the mounts attached; it names them only for Landlock. */
static uint32_t mount_count(void) { return request->flags & SPAWN_FLAG_JOIN ? 0 : request->mounts; }
static const int *kernel_fds(void) { return mount_fds() + mount_count(); }
static int is_born_in_cgroup(void) { return !!(request->flags & SPAWN_FLAG_CGROUP_INTO); }

static long bring_up_loopback(void)
{
    long fd = sys(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    struct ifreq interface = {.ifr_name = "lo"};
    interface.ifr_flags = IFF_UP | IFF_RUNNING;
    long outcome = sys(SYS_ioctl, fd, SIOCSIFFLAGS, &interface);
    sys(SYS_close, fd);
    return outcome;
}

/* The host learns this child's pid from the credentials that come with the byte. */
static long say_hello(void) { return send_message(boot_socket(), "h", 1, -1); }

/* Waits until the host has written the id map, raised the out-of-memory score, and agrees; with that comes what
 * it has made meanwhile for this child to enter. */
static long wait_for_go(void)
{
    char answer = 0;
    long length = receive_message(boot_socket(), &answer, 1, entries, &entry_count);
    return length < 0 ? length : length == 1 && answer == 'g' ? 0 : -ECANCELED;
}

static long write_id_map(const char *path, uint32_t outer)
{
    char text[64], *end = put_number(text, SANDBOX_ID);
    end = put_text(end, " ");
    end = put_number(end, outer);
    put_text(end, " 1");
    return write_text(path, text);
}

static long map_self(void)
{
    long outcome = write_text("/proc/self/setgroups", "deny");
    if (!outcome)
        outcome = write_id_map("/proc/self/uid_map", request->outer_uid);
    if (!outcome)
        outcome = write_id_map("/proc/self/gid_map", request->outer_gid);
    return outcome;
}

/* The domain as well: a new namespace starts with the host's. */
static long set_hostname(void)
{
    static const char no_domain[] = "(none)";
    long outcome = sys(SYS_sethostname, request->hostname, text_length(request->hostname));
    return outcome ? outcome : sys(SYS_setdomainname, no_domain, text_length(no_domain));
}

static long join_new_keyring(void)
{
    long outcome = sys(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0);
    return outcome == -ENOSYS ? 0 : outcome < 0 ? outcome : 0; /* a kernel without keys has none to share */
}

static void reset_child_signal(void)
{
    struct {
        void *handler;
        unsigned long flags;
        void *restorer;
        uint64_t mask;
    } standard = {0};
    sys(SYS_rt_sigaction, SIGCHLD, &standard, 0, sizeof standard.mask);
}

/* Everything that needs privileges, in order. Each answers -errno of the step named by failed_step. */
#define DO(step, call) STEP(request, &failed_step, STEP_##step, call)

static long prepare_sandbox(void)
{
    DO(LOOPBACK, bring_up_loopback());
    DO(HELLO, say_hello());
    /* While the host writes the id map, everything that needs none: */
    if (request->flags & SPAWN_FLAG_SELF_MAP)
        DO(SELF_MAP, map_self());
    DO(PROC, mount_proc());
    DO(NO_USER_NAMESPACES, forbid_user_namespaces());
    DO(RLIMITS, limit_watches());
    DO(LOOPBACK, allow_low_ports(request));
    DO(PROC_MASKS, mask_proc());
    DO(PROC_READ_ONLY, make_proc_sys_read_only());
    DO(HOSTNAME, set_hostname());
    DO(RLIMITS, set_rlimits(request));
    DO(GO, wait_for_go());
    DO(CGROUP_ENTER, enter_cgroups(entries, entry_count));
    /* After entering, or /proc/self/cgroup would show the host's path. */
    DO(CGROUP_NAMESPACE, sys(SYS_unshare, CLONE_NEWCGROUP));
    DO(RLIMITS, raise_oom_score(request));
    DO(TERMINALS, mount_terminals());
    DO(SHM, mount_shm(request));
    DO(TMP, mount_tmp(request));
    DO(HOME, mount_home(request));
    DO(WORKSPACE, mount_workspace(request, mount_fds()));
    DO(MOUNTS, mount_others(request, mount_fds()));
    DO(WORKING_DIRECTORY, sys(SYS_chdir, "/workspace"));
    DO(KEYRING, join_new_keyring());
    return 0;
}

static long exec_init(const char *role, int pid)
{
    char number[24];
    const char *arguments[] = {role, number, 0};
    static const char *const environment[] = {0};
    put_number(number, (uint64_t)pid);
    return sys(SYS_execve, "/.atoll/init", arguments, environment);
}

/* The one copy of page tables that is made. */
static long start_kernel(void)
{
    if (!(request->flags & SPAWN_FLAG_KERNEL))
        return 0;
    long pid = fork_kernel(kernel_fds());
    kernel_pid = pid > 0 ? (int)pid : 0;
    return pid;
}

/* On success it does not return. */
static long become_sandbox(void)
{
    reset_child_signal();
    long outcome = prepare_sandbox();
    if (!outcome)
        outcome = seal(request, &failed_step);
    if (outcome < 0)
        return outcome;
    DO(KERNEL_FORK, start_kernel());
    int kept[] = {boot_socket(), kernel_fds()[0]};
    DO(DESCRIPTORS, keep_only(kept, kernel_pid ? 2 : 1));
    DO(EXEC_INIT, exec_init("init", kernel_pid));
    return -EIO;
}

/* The zygote's id owns the sandbox's user namespace, which gives it every right there. */
static long enter_sandbox(void)
{
    int all = NAMESPACES | CLONE_NEWCGROUP;
    return sys(SYS_setns, passed[0], all);
}

/* On success it does not return. */
static long become_supervisor(void)
{
    DO(KERNEL_FORK, start_kernel());
    DO(SUPERVISOR, keep_only(kernel_fds(), 1));
    return exec_init("supervisor", kernel_pid);
}

static int supervisor_main(void *unused)
{
    (void)unused;
    failed_error = become_supervisor();
    sys(SYS_exit_group, 1);
    __builtin_unreachable();
}

/* Only a child of this process is inside, so that one has to fork the kernel and watch over it: this waits until it
 * is the static program. */
static long start_supervisor(void)
{
    long pid = clone_on(supervisor_stack + STACK_BYTES, supervisor_main, CLONE_VM | CLONE_VFORK);
    return pid < 0 ? pid : failed_error;
}

static long join_sandbox(void)
{
    reset_child_signal();
    DO(CGROUP_ENTER, is_born_in_cgroup() ? 0 : enter_cgroups(cgroup_fds(), (int)request->cgroup_fds));
    /* Before joining: the sandbox's own /proc does not know this process. */
    DO(RLIMITS, raise_oom_score(request));
    DO(JOIN, enter_sandbox());
    DO(RLIMITS, set_rlimits(request));
    DO(WORKING_DIRECTORY, sys(SYS_chdir, "/workspace"));
    DO(KEYRING, join_new_keyring());
    long outcome = seal(request, &failed_step);
    if (outcome < 0)
        return outcome;
    DO(KERNEL_FORK, start_supervisor());
    return 0;
}
#undef DO

static int child_main(void *unused)
{
    (void)unused;
    int joining = request->flags & SPAWN_FLAG_JOIN;
    failed_error = joining ? join_sandbox() : become_sandbox();
    sys(SYS_exit_group, failed_error ? 1 : 0);
    __builtin_unreachable();
}

static long clone_child(void)
{
    STEP(request, &failed_step, STEP_CLONE, 0);
    uint64_t flags = CLONE_VM | CLONE_VFORK | (request->flags & SPAWN_FLAG_JOIN ? 0 : NAMESPACES);
    char *top = stack + STACK_BYTES;
    if (is_born_in_cgroup())
        return clone_into(cgroup_fds()[0], top, child_main, flags);
    return clone_on(top, child_main, flags);
}

static int is_valid(int count)
{
    uint32_t kernel = request->flags & SPAWN_FLAG_KERNEL ? ATOLL_KERNEL_FDS : 0;
    uint32_t expected = 1 + request->cgroup_fds + mount_count() + kernel;
    return request->version == ATOLL_VERSION && request->cgroup_fds <= ATOLL_MAX_CGROUP_FDS &&
           request->mounts <= ATOLL_MAX_MOUNTS && (uint32_t)count == expected;
}

struct step_reply spawn(const struct spawn_request *asked, const int *fds, int count)
{
    request = asked;
    passed = fds;
    if (!is_valid(count))
        return (struct step_reply){.step = STEP_CLONE, .error = EPROTO};
    failed_step = STEP_CLONE;
    failed_error = 0;
    kernel_pid = 0;
    entry_count = 0;
    long pid = clone_child();
    if (pid < 0)
        failed_error = pid;
    struct step_reply reply = {.step = failed_error ? failed_step : STEP_NONE, .error = (int)-failed_error};
    reply.pid = pid > 0 ? (int)pid : 0;
    return reply;
}
