/* Makes a sandbox from an unprivileged, jailed process.
 *
 * The child is cloned with all namespaces while it shares the zygote's memory, vfork-style, so that no
 * page table is copied. It sets itself up step by step with raw system calls only, gives up every
 * privilege, and turns into the static init. If a step fails, nothing of the user's has run yet. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/if.h>
#include <linux/keyctl.h>
#include <linux/landlock.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "passing.h"
#include "spawn.h"
#include "steps.h"
#include "sys.h"

#define SANDBOX_ID 65532
#define NAMESPACES \
    (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)
#define STACK_BYTES 65536
#define CONTROL_FD 3

/* One spawn at a time; the child shares this memory while the zygote waits for it. */
static struct spawn_request request;
static int passed[PASSING_MOST];
static int passed_count;
static int entries[PASSING_MOST];
static int entry_count;
static struct sock_fprog filter_program;
/* Volatile: the child writes them while the parent waits in a call, which the compiler cannot know. */
static volatile int failed_step;
static volatile long failed_error;
static char stack[STACK_BYTES] __attribute__((aligned(64)));
static char supervisor_stack[STACK_BYTES] __attribute__((aligned(64)));
static int supervisor_pid;
/* A kernel's supervisor shares this memory, too, beside the child; cleared by the machine once it does not any more. */
static volatile int supervisor_here;
static volatile int supervisor_step;
static volatile long supervisor_error;

/* An interpreter that serves gives these; the plain zygote has none and forks no kernels. */
static pid_t (*fork_quietly)(void);
static void *kernel_context[5];

/* Pages that every kernel writes to, or reads, first; see atoll_guest/hot_pages.py. */
#define MOST_RANGES 1024
struct pages {
    uint64_t start, end;
};
static struct pages writes[MOST_RANGES], reads[MOST_RANGES];
static size_t write_count, read_count;
/* The first that a kernel says. */
static char hello[256];
static size_t hello_length;

static int boot_socket(void) { return passed[0]; }
static const int *cgroup_fds(void) { return passed + 1; }
static const int *mount_fds(void) { return passed + 1 + request.cgroup_fds; }
/* One that joins finds the mounts attached; it names them only for Landlock. */
static uint32_t mount_count(void) { return request.flags & SPAWN_FLAG_JOIN ? 0 : request.mounts; }
static const int *kernel_fds(void) { return mount_fds() + mount_count(); }
static int self_mapped(void) { return !!(request.flags & SPAWN_FLAG_SELF_MAP); }

static long write_text(const char *path, const char *text)
{
    long fd = sys(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    long length = text_length(text);
    long written = sys(SYS_write, fd, text, length);
    sys(SYS_close, fd);
    return written == length ? 0 : written < 0 ? written : -EIO;
}

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
        outcome = write_id_map("/proc/self/uid_map", request.outer_uid);
    if (!outcome)
        outcome = write_id_map("/proc/self/gid_map", request.outer_gid);
    return outcome;
}

static long mount_proc(void)
{
    return sys(SYS_mount, "proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, 0);
}

/* User namespaces hand out capabilities over fresh kernel objects: most local root exploits need one. */
static long forbid_user_namespaces(void) { return write_text("/proc/sys/user/max_user_namespaces", "0"); }

/* What sandboxes have of these counts for the user who makes them, too, up to the host's own limit: one that had
 * them all would leave none to the others. */
static long limit_watches(void)
{
    long outcome = write_text("/proc/sys/user/max_inotify_instances", "16");
    if (!outcome)
        outcome = write_text("/proc/sys/user/max_inotify_watches", "8192");
    return outcome == -ENOENT ? 0 : outcome; /* a kernel without them */
}

static long mask(const char *path, const char *with)
{
    long outcome = sys(SYS_mount, with, path, 0, MS_BIND, 0);
    return outcome == -ENOENT ? 0 : outcome; /* what this kernel does not have needs no mask */
}

static long mask_proc(void)
{
    static const char *const files[] = {ATOLL_MASKED_FILES};
    static const char *const directories[] = {ATOLL_MASKED_DIRECTORIES};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        long outcome = mask(files[i], "/dev/null");
        if (outcome)
            return outcome;
    }
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++) {
        long outcome = mask(directories[i], "/.atoll/empty");
        if (outcome)
            return outcome;
    }
    return 0;
}

static long make_proc_sys_read_only(void)
{
    long outcome = sys(SYS_mount, "/proc/sys", "/proc/sys", 0, MS_BIND, 0);
    if (outcome)
        return outcome;
    return sys(SYS_mount, 0, "/proc/sys", 0,
               MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, 0);
}

/* The domain as well: a new namespace starts with the host's. */
static long set_hostname(void)
{
    static const char no_domain[] = "(none)";
    long outcome = sys(SYS_sethostname, request.hostname, text_length(request.hostname));
    return outcome ? outcome : sys(SYS_setdomainname, no_domain, text_length(no_domain));
}

static long limit(int resource, uint64_t value)
{
    struct {
        uint64_t soft, hard;
    } limits = {value, value};
    return sys(SYS_prlimit64, 0, resource, &limits, 0);
}

/* On a machine with little memory less than this may be allowed already, and nobody here could raise it. */
static long limit_at_most(int resource, uint64_t most)
{
    struct {
        uint64_t soft, hard;
    } found;
    long outcome = sys(SYS_prlimit64, 0, resource, 0, &found);
    return outcome ? outcome : limit(resource, found.hard < most ? found.hard : most);
}

static long set_rlimits(void)
{
    long outcome = limit(RLIMIT_CORE, 0);
    if (!outcome)
        outcome = limit(RLIMIT_NOFILE, request.open_files);
    if (!outcome)
        outcome = limit(RLIMIT_FSIZE, request.file_bytes);
    if (!outcome)
        outcome = limit(RLIMIT_MEMLOCK, 65536);
    if (!outcome)
        outcome = limit_at_most(RLIMIT_MSGQUEUE, 819200);
    if (!outcome)
        outcome = limit_at_most(RLIMIT_SIGPENDING, 4096);
    if (!outcome)
        outcome = limit(RLIMIT_RTPRIO, 0);
    if (!outcome)
        outcome = limit(RLIMIT_NICE, 0);
    if (!outcome && request.processes)
        outcome = limit(RLIMIT_NPROC, request.processes);
    if (!outcome && request.data_bytes)
        outcome = limit(RLIMIT_DATA, request.data_bytes);
    return outcome;
}

/* Writing 0 to `tasks` moves the writer alone, which takes no grace period; a pid in `cgroup.procs` does. */
static long enter_cgroups(void)
{
    if (request.flags & SPAWN_FLAG_CGROUP_INTO)
        return 0; /* born there */
    const int *fds = request.flags & SPAWN_FLAG_JOIN ? cgroup_fds() : entries;
    int count = request.flags & SPAWN_FLAG_JOIN ? (int)request.cgroup_fds : entry_count;
    for (int i = 0; i < count; i++) {
        long outcome = sys(SYS_write, fds[i], "0", 1);
        if (outcome != 1)
            return outcome < 0 ? outcome : -EIO;
    }
    return 0;
}

static long raise_oom_score(void)
{
    return request.flags & SPAWN_FLAG_RAISE_OOM_SCORE ? write_text("/proc/self/oom_score_adj", "300") : 0;
}

static long mount_terminals(void)
{
    return sys(SYS_mount, "devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
               "newinstance,ptmxmode=0666,mode=0620,max=256");
}

static long mount_tree(const char *path, const char *mode, uint64_t bytes, unsigned long flags)
{
    char options[160], *end = put_text(options, "mode=");
    end = put_text(end, mode);
    end = put_text(end, ",uid=65532,gid=65532,size=");
    end = put_number(end, bytes);
    end = put_text(end, ",nr_inodes=");
    put_number(end, request.inodes);
    return sys(SYS_mount, "tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV | flags, options);
}

static long attach_mount(int fd, const char *path)
{
    return sys(SYS_move_mount, fd, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH);
}

static long make_directories(const char *path)
{
    char partial[ATOLL_MAX_TARGET];
    /* The zygote's own id has no place in the sandbox's trees: they can only hold what the map knows. */
    sys(SYS_setfsgid, SANDBOX_ID);
    sys(SYS_setfsuid, SANDBOX_ID);
    for (size_t i = 0; path[i]; i++) {
        partial[i] = path[i];
        if (i && (path[i + 1] == '/' || !path[i + 1])) {
            partial[i + 1] = 0;
            long outcome = sys(SYS_mkdirat, AT_FDCWD, partial, 0755);
            if (outcome && outcome != -EEXIST && outcome != -EROFS)
                return outcome;
        }
    }
    return 0;
}

static int is_below_mnt(const struct mount_target *target)
{
    const char *path = target->path;
    return path[0] == '/' && path[1] == 'm' && path[2] == 'n' && path[3] == 't' && path[4] == '/';
}

static long mount_workspace(void)
{
    if (request.workspace_bytes)
        return mount_tree("/workspace", "0755", request.workspace_bytes, 0);
    return request.mounts ? attach_mount(mount_fds()[0], "/workspace") : -EINVAL;
}

static long mount_others(void)
{
    uint32_t first = request.workspace_bytes ? 0 : 1;
    int wants_mnt = 0;
    for (uint32_t i = first; i < request.mounts; i++)
        wants_mnt |= is_below_mnt(&request.mount[i]);
    long outcome = wants_mnt ? mount_tree("/mnt", "0755", 65536, 0) : 0;
    for (uint32_t i = first; i < request.mounts && !outcome; i++) {
        outcome = make_directories(request.mount[i].path);
        if (!outcome)
            outcome = attach_mount(mount_fds()[i], request.mount[i].path);
    }
    if (wants_mnt && !outcome)
        outcome = sys(SYS_mount, 0, "/mnt", 0, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, 0);
    return outcome;
}

long drop_bounding_set(void)
{
    for (int capability = 0; capability < 64; capability++) {
        long outcome = sys(SYS_prctl, PR_CAPBSET_DROP, capability, 0, 0, 0);
        if (outcome == -EINVAL)
            return capability ? 0 : outcome; /* past the last one that this kernel knows */
        if (outcome)
            return outcome;
    }
    return 0;
}

long clear_ambient_set(void) { return sys(SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); }

long lock_securebits(void)
{
    unsigned long bits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP |
                         SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED |
                         SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;
    return sys(SYS_prctl, PR_SET_SECUREBITS, bits, 0, 0, 0);
}

long drop_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}, {0}};
    return sys(SYS_capset, &header, none);
}

static long drop_groups(void) { return self_mapped() ? 0 : sys(SYS_setgroups, 0, 0); }

#define LANDLOCK_READ \
    (LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define LANDLOCK_IOCTL_DEVICE (1ULL << 15)

static long landlock_allow(int ruleset, const char *path, uint64_t access, uint64_t handled)
{
    long fd = sys(SYS_openat, AT_FDCWD, path, O_PATH | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    struct landlock_path_beneath_attr rule = {.allowed_access = access & handled, .parent_fd = (int)fd};
    long outcome = sys(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
    sys(SYS_close, fd);
    return outcome;
}

/* Everything may be read, as the tree holds nothing else; writes go only where writing is meant.
 * /proc stays without them, so that nobody lowers his out-of-memory score. */
static long landlock_rules(int ruleset, uint64_t handled)
{
    static const char *const writable[] = {"/workspace", "/tmp", "/home/sandbox", "/dev/shm"};
    long outcome = landlock_allow(ruleset, "/", LANDLOCK_READ, handled);
    for (size_t i = 0; i < sizeof writable / sizeof *writable && !outcome; i++)
        outcome = landlock_allow(ruleset, writable[i], ~0ULL, handled);
    for (uint32_t i = 0; i < request.mounts && !outcome; i++)
        if (request.mount[i].writable)
            outcome = landlock_allow(ruleset, request.mount[i].path, ~0ULL, handled);
    if (!outcome)
        outcome = landlock_allow(ruleset, "/dev", LANDLOCK_READ | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_IOCTL_DEVICE,
                                 handled);
    return outcome;
}

static uint64_t landlock_rights(long abi)
{
    uint64_t rights = (1ULL << 13) - 1;
    if (abi >= 2)
        rights |= 1ULL << 13; /* link and rename across directories */
    if (abi >= 3)
        rights |= 1ULL << 14; /* truncate */
    if (abi >= 5)
        rights |= LANDLOCK_IOCTL_DEVICE;
    return rights;
}

static long apply_landlock(void)
{
    long abi = sys(SYS_landlock_create_ruleset, 0, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (abi == -ENOSYS || abi == -EOPNOTSUPP)
        return 0; /* an older kernel: the other layers hold without it, and the doctor says so */
    if (abi < 0)
        return abi;
    struct landlock_ruleset_attr attributes = {.handled_access_fs = landlock_rights(abi)};
    long ruleset = sys(SYS_landlock_create_ruleset, &attributes, sizeof attributes.handled_access_fs, 0);
    if (ruleset < 0)
        return ruleset;
    long outcome = landlock_rules((int)ruleset, attributes.handled_access_fs);
    if (!outcome)
        outcome = sys(SYS_landlock_restrict_self, ruleset, 0);
    sys(SYS_close, ruleset);
    return outcome;
}

static long apply_filter(void) { return sys(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter_program); }

static long join_new_keyring(void)
{
    long outcome = sys(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0);
    return outcome == -ENOSYS ? 0 : outcome < 0 ? outcome : 0; /* a kernel without keys has none to share */
}

static void reset_signals(void)
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
#define DO(step, call) STEP(&request, &failed_step, STEP_##step, call)

static long prepare_sandbox(void)
{
    DO(LOOPBACK, bring_up_loopback());
    DO(HELLO, say_hello());
    /* While the host writes the id map, everything that needs none: */
    if (self_mapped())
        DO(SELF_MAP, map_self());
    DO(PROC, mount_proc());
    DO(NO_USER_NAMESPACES, forbid_user_namespaces());
    DO(RLIMITS, limit_watches());
    DO(PROC_MASKS, mask_proc());
    DO(PROC_READ_ONLY, make_proc_sys_read_only());
    DO(HOSTNAME, set_hostname());
    DO(RLIMITS, set_rlimits());
    DO(GO, wait_for_go());
    DO(CGROUP_ENTER, enter_cgroups());
    /* After entering, or /proc/self/cgroup would show the host's path. */
    DO(CGROUP_NAMESPACE, sys(SYS_unshare, CLONE_NEWCGROUP));
    DO(RLIMITS, raise_oom_score());
    DO(TERMINALS, mount_terminals());
    DO(SHM, mount_tree("/dev/shm", "1777", request.shm_bytes, MS_NOEXEC));
    DO(TMP, mount_tree("/tmp", "1777", request.tmp_bytes, 0));
    DO(HOME, mount_tree("/home/sandbox", "0700", request.home_bytes, 0));
    DO(WORKSPACE, mount_workspace());
    DO(MOUNTS, mount_others());
    DO(WORKING_DIRECTORY, sys(SYS_chdir, "/workspace"));
    DO(KEYRING, join_new_keyring());
    return 0;
}

/* Gives up every privilege for good. Whatever runs in a sandbox has gone through this, or descends from
 * something that has. */
static long seal(void)
{
    DO(GROUPS, drop_groups());
    DO(GROUP_ID, sys(SYS_setresgid, SANDBOX_ID, SANDBOX_ID, SANDBOX_ID));
    DO(USER_ID, sys(SYS_setresuid, SANDBOX_ID, SANDBOX_ID, SANDBOX_ID));
    DO(BOUNDING_SET, drop_bounding_set());
    DO(AMBIENT_SET, clear_ambient_set());
    DO(SECUREBITS, lock_securebits());
    DO(CAPABILITIES, drop_capabilities());
    DO(NO_NEW_PRIVILEGES, sys(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    DO(LANDLOCK, apply_landlock());
    DO(FILTER, apply_filter());
    return 0;
}

static long keep_only(int fd)
{
    long outcome = fd != CONTROL_FD ? sys(SYS_dup3, fd, CONTROL_FD, 0) : sys(SYS_fcntl, fd, F_SETFD, 0);
    return outcome < 0 ? outcome : sys(SYS_close_range, CONTROL_FD + 1, ~0U, 0);
}

static long exec_init(const char *role, int pid)
{
    char number[24];
    const char *arguments[] = {role, number, 0};
    static const char *const environment[] = {0};
    put_number(number, (uint64_t)pid);
    return sys(SYS_execve, "/.atoll/init", arguments, environment);
}

#define POPULATE_READ 22
#define POPULATE_WRITE 23

static void populate(const struct pages *ranges, size_t count, int how)
{
    for (size_t i = 0; i < count; i++)
        /* A kernel too old for this answers EINVAL; pages are then faulted in one by one. */
        if (sys(SYS_madvise, ranges[i].start, ranges[i].end - ranges[i].start, how) == -EINVAL)
            return;
}

/* The kernel's own half: a copy of the suspended interpreter, which goes on where it began to serve. */
static _Noreturn void become_kernel(void)
{
    const int *fds = kernel_fds();
    uint64_t none = 0;
    sys(SYS_setpgid, 0, 0);
    long outcome = 0;
    for (int stream = 0; stream < 3 && outcome >= 0; stream++)
        outcome = sys(SYS_dup3, fds[2 + stream], stream, 0);
    if (outcome >= 0)
        outcome = keep_only(fds[1]);
    if (outcome < 0)
        sys(SYS_exit_group, ATOLL_KERNEL_FAILED);
    sys(SYS_rt_sigprocmask, SIG_SETMASK, &none, 0, sizeof none);
    /* The user's code runs right here: there is nothing to hide, and it may look at itself. */
    sys(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0);
    /* While the host looks at what this process is, it gets ready. */
    send_message(CONTROL_FD, hello, hello_length, -1);
    populate(writes, write_count, POPULATE_WRITE);
    populate(reads, read_count, POPULATE_READ);
    __builtin_longjmp(kernel_context, 1);
}

static long become_supervisor(void)
{
    int pid = fork_quietly();
    if (pid == 0)
        become_kernel();
    supervisor_step = STEP_KERNEL_FORK;
    if (pid < 0)
        return -EAGAIN;
    STEP(&request, &supervisor_step, STEP_SUPERVISOR, keep_only(kernel_fds()[0]));
    return exec_init("supervisor", pid);
}

static int supervisor_main(void *unused)
{
    (void)unused;
    supervisor_error = become_supervisor();
    sys(SYS_exit_group, 1);
    __builtin_unreachable();
}

static long clone_on(char *top, int (*function)(void *), uint64_t flags, volatile int *here);

/* Kernels have a supervisor like every command. It is born sharing this memory, forks the kernel from it, which
 * is the only copy of page tables that is made, and becomes the static program. Both are born sealed: giving up
 * privileges once for three processes is cheaper, and leaves none of them a moment with any. Meanwhile the child goes
 * on and becomes init; the zygote waits until neither needs its memory any more. */
static long fork_kernel(void)
{
    if (!(request.flags & SPAWN_FLAG_KERNEL))
        return 0;
    if (!fork_quietly)
        return -ENOTSUP;
    supervisor_here = 1;
    long pid = clone_on(supervisor_stack + STACK_BYTES, supervisor_main, CLONE_VM | CLONE_CHILD_CLEARTID,
                        &supervisor_here);
    if (pid < 0)
        supervisor_here = 0;
    supervisor_pid = pid > 0 ? (int)pid : 0;
    return pid < 0 ? pid : 0;
}

static void await_supervisor(void)
{
    while (supervisor_here)
        sys(SYS_futex, &supervisor_here, FUTEX_WAIT, 1, 0, 0, 0);
}

/* On success it does not return. */
static long become_sandbox(void)
{
    reset_signals();
    long outcome = prepare_sandbox();
    if (!outcome)
        outcome = seal();
    if (outcome < 0)
        return outcome;
    DO(KERNEL_FORK, fork_kernel());
    DO(DESCRIPTORS, keep_only(boot_socket()));
    DO(EXEC_INIT, exec_init("init", supervisor_pid));
    return -EIO;
}

/* The zygote's id owns the sandbox's user namespace, which gives it every right there. */
static long enter_sandbox(void)
{
    int all = NAMESPACES | CLONE_NEWCGROUP;
    return sys(SYS_setns, passed[0], all);
}

static long join_sandbox(void)
{
    reset_signals();
    DO(CGROUP_ENTER, enter_cgroups());
    /* Before joining: the sandbox's own /proc does not know this process. */
    DO(RLIMITS, raise_oom_score());
    DO(JOIN, enter_sandbox());
    DO(RLIMITS, set_rlimits());
    DO(WORKING_DIRECTORY, sys(SYS_chdir, "/workspace"));
    DO(KEYRING, join_new_keyring());
    long outcome = seal();
    if (outcome < 0)
        return outcome;
    DO(KERNEL_FORK, fork_kernel());
    return 0;
}
#undef DO

static int child_main(void *unused)
{
    (void)unused;
    int joining = request.flags & SPAWN_FLAG_JOIN;
    failed_error = joining ? join_sandbox() : become_sandbox();
    sys(SYS_exit_group, failed_error ? 1 : 0);
    __builtin_unreachable();
}

/* A call that starts a child on a stack of its own, which the C library has no wrapper for. */
static long start_on_stack(long call, long first, long second, volatile int *here, int (*main)(void *))
{
#if defined(__x86_64__)
    register int (*function)(void *) __asm__("r12") = main;
    register long tls __asm__("r8") = 0;
    register long child_tid __asm__("r10") = (long)here;
    long result;
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "xor %%edi, %%edi\n\t"
                     "call *%%r12\n\t"
                     "hlt\n"
                     "1:"
                     : "=a"(result)
                     : "a"(call), "D"(first), "S"(second), "d"(0L), "r"(child_tid), "r"(tls), "r"(function)
                     : "rcx", "r11", "memory", "cc");
    return result;
#else
    register int (*function)(void *) __asm__("x9") = main;
    register long x8 __asm__("x8") = call;
    register long x0 __asm__("x0") = first;
    register long x1 __asm__("x1") = second;
    register long x2 __asm__("x2") = 0;
    register long x3 __asm__("x3") = 0;
    register long x4 __asm__("x4") = (long)here;
    __asm__ volatile("svc 0\n\t"
                     "cbnz x0, 1f\n\t"
                     "mov x29, #0\n\t"
                     "blr x9\n"
                     "1:"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(function)
                     : "memory", "cc", "x30");
    return x0;
#endif
}

/* What is sealed may use only this one: flags of clone3 lie in memory, where no filter sees them. */
static long clone_on(char *top, int (*function)(void *), uint64_t flags, volatile int *here)
{
    return start_on_stack(SYS_clone, (long)(flags | SIGCHLD), (long)top, here, function);
}

static long clone_into(int cgroup, char *top, int (*function)(void *), uint64_t flags)
{
    struct clone_args arguments = {
        .flags = flags | CLONE_INTO_CGROUP,
        .exit_signal = SIGCHLD,
        .stack = (uint64_t)(uintptr_t)(top - STACK_BYTES),
        .stack_size = STACK_BYTES,
        .cgroup = (uint64_t)cgroup,
    };
    return start_on_stack(SYS_clone3, (long)&arguments, sizeof arguments, 0, function);
}

static long clone_child(void)
{
    STEP(&request, &failed_step, STEP_CLONE, 0);
    uint64_t flags = CLONE_VM | CLONE_VFORK | (request.flags & SPAWN_FLAG_JOIN ? 0 : NAMESPACES);
    char *top = stack + STACK_BYTES;
    if (request.flags & SPAWN_FLAG_CGROUP_INTO)
        return clone_into(cgroup_fds()[0], top, child_main, flags);
    return clone_on(top, child_main, flags, 0);
}

static struct step_reply spawn(void)
{
    failed_step = STEP_CLONE;
    failed_error = 0;
    supervisor_pid = 0;
    entry_count = 0;
    supervisor_here = 0;
    supervisor_error = 0;
    long pid = clone_child();
    if (pid < 0)
        failed_error = pid;
    await_supervisor();
    if (!failed_error && supervisor_error) {
        failed_step = supervisor_step;
        failed_error = supervisor_error;
    }
    struct step_reply reply = {.step = failed_error ? failed_step : STEP_NONE, .error = (int)-failed_error};
    reply.pid = pid > 0 ? (int)pid : 0;
    return reply;
}

static int valid_request(long length)
{
    uint32_t kernel = request.flags & SPAWN_FLAG_KERNEL ? ATOLL_KERNEL_FDS : 0;
    uint32_t expected = 1 + request.cgroup_fds + mount_count() + kernel;
    return length == sizeof request && request.version == ATOLL_VERSION && request.cgroup_fds <= ATOLL_MAX_CGROUP_FDS &&
           request.mounts <= ATOLL_MAX_MOUNTS && (uint32_t)passed_count == expected;
}

static long load_filter(int fd)
{
    struct stat facts;
    if (fstat(fd, &facts) || facts.st_size == 0 || facts.st_size % sizeof(struct sock_filter))
        return -EINVAL;
    filter_program.len = (unsigned short)(facts.st_size / sizeof(struct sock_filter));
    filter_program.filter = mmap(0, facts.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (filter_program.filter == MAP_FAILED)
        return -errno;
    sys(SYS_close, fd);
    return 0;
}

/* Makes a second zygote of this one. Returns the socket that this process serves from now on. */
static int split(int control, struct step_reply *reply)
{
    long pid = fork_quietly ? fork_quietly() : sys(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        sys(SYS_close, control);
        return passed[0];
    }
    *reply = (struct step_reply){.step = pid < 0 ? STEP_CLONE : STEP_NONE, .error = pid < 0 ? EAGAIN : 0};
    return control;
}

/* Returns only in a kernel. */
static void serve(int control)
{
    signal(SIGCHLD, SIG_IGN); /* sandboxes that end leave no zombie */
    for (;;) {
        long length = receive_message(control, &request, sizeof request, passed, &passed_count);
        if (length <= 0)
            sys(SYS_exit_group, 0);
        struct step_reply reply = {.step = STEP_CLONE, .error = EPROTO};
        if (length == sizeof request && request.flags == SPAWN_FLAG_SPLIT && passed_count == 1) {
            int served = split(control, &reply);
            if (served != control) {
                control = served;
                continue;
            }
        } else if (valid_request(length)) {
            reply = spawn();
        }
        for (int i = 0; i < passed_count; i++)
            sys(SYS_close, passed[i]);
        send_message(control, &reply, sizeof reply, -1);
    }
}

static void say_ready(int control, int step, long error)
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
    serve(control);
    __builtin_unreachable();
}

/* The restartable sequence that this thread's library registered does not survive the kernel's birth. */
static void register_rseq(void)
{
    ptrdiff_t *offset = dlsym(RTLD_DEFAULT, "__rseq_offset");
    unsigned *size = dlsym(RTLD_DEFAULT, "__rseq_size");
    if (offset && size && *size)
        sys(SYS_rseq, (char *)__builtin_thread_pointer() + *offset, 32, 0, 0x53053053);
}

static size_t keep_ranges(struct pages *kept, const uint64_t *ranges, size_t count)
{
    if (count > MOST_RANGES)
        count = MOST_RANGES;
    for (size_t i = 0; i < count; i++)
        kept[i] = (struct pages){ranges[2 * i], ranges[2 * i + 1]};
    return count;
}

void expect_writes(const uint64_t *ranges, size_t count) { write_count = keep_ranges(writes, ranges, count); }
void expect_reads(const uint64_t *ranges, size_t count) { read_count = keep_ranges(reads, ranges, count); }

void keep_hello(const char *frame, size_t length)
{
    hello_length = length < sizeof hello ? length : sizeof hello;
    for (size_t i = 0; i < hello_length; i++)
        hello[i] = frame[i];
}

int serve_interpreter(int control, int filter)
{
    long error = load_filter(filter);
    fork_quietly = (pid_t(*)(void))dlsym(RTLD_DEFAULT, "_Fork");
    if (!error && !fork_quietly)
        error = -ENOSYS;
    say_ready(control, error ? STEP_ZYGOTE_FILTER : STEP_NONE, error);
    if (__builtin_setjmp(kernel_context) == 0)
        serve(control);
    register_rseq();
    return CONTROL_FD;
}
