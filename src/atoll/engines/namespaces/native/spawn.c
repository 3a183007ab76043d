/* Makes a sandbox from an unprivileged, jailed process.
 *
 * The child is cloned with all namespaces while it shares the zygote's memory, vfork-style, so that no
 * page table is copied. It sets itself up step by step with raw system calls only, gives up every
 * privilege, and turns into the static init. If a step fails, nothing of the user's has run yet. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
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
static struct sock_fprog filter_program;
static int failed_step;
static long failed_error;
static char stack[STACK_BYTES] __attribute__((aligned(64)));

static int boot_socket(void) { return passed[0]; }
static const int *cgroup_fds(void) { return passed + 1; }
static const int *mount_fds(void) { return passed + 1 + request.cgroup_fds; }
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

/* Waits until the host has written the id map, raised the out-of-memory score, and agrees. */
static long wait_for_go(void)
{
    char answer = 0;
    long length = sys(SYS_read, boot_socket(), &answer, 1);
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

static long mask(const char *path, const char *with)
{
    long outcome = sys(SYS_mount, with, path, 0, MS_BIND, 0);
    return outcome == -ENOENT ? 0 : outcome; /* what this kernel does not have needs no mask */
}

static long mask_proc(void)
{
    static const char *const files[] = {
        "/proc/kcore",         "/proc/kmsg",         "/proc/kallsyms",   "/proc/keys",
        "/proc/key-users",     "/proc/timer_list",   "/proc/slabinfo",   "/proc/vmallocinfo",
        "/proc/kpagecount",    "/proc/kpageflags",   "/proc/kpagecgroup", "/proc/config.gz",
        "/proc/diskstats",     "/proc/partitions",   "/proc/sched_debug", "/proc/latency_stats",
        "/proc/sysrq-trigger", "/proc/timer_stats",  "/proc/cmdline",    "/proc/modules",
    };
    static const char *const directories[] = {
        "/proc/acpi", "/proc/asound", "/proc/bus",  "/proc/driver",
        "/proc/fs",   "/proc/irq",    "/proc/scsi",
    };
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

static long set_hostname(void) { return sys(SYS_sethostname, request.hostname, text_length(request.hostname)); }

static long limit(int resource, uint64_t value)
{
    struct {
        uint64_t soft, hard;
    } limits = {value, value};
    return sys(SYS_prlimit64, 0, resource, &limits, 0);
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
        outcome = limit(RLIMIT_MSGQUEUE, 819200);
    if (!outcome)
        outcome = limit(RLIMIT_SIGPENDING, 4096);
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
    for (uint32_t i = 0; i < request.cgroup_fds; i++) {
        long outcome = sys(SYS_write, cgroup_fds()[i], "0", 1);
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

static long keep_only_control(void)
{
    long outcome = 0;
    if (boot_socket() != CONTROL_FD)
        outcome = sys(SYS_dup3, boot_socket(), CONTROL_FD, 0);
    else
        outcome = sys(SYS_fcntl, CONTROL_FD, F_SETFD, 0);
    if (outcome < 0)
        return outcome;
    return sys(SYS_close_range, CONTROL_FD + 1, ~0U, 0);
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

static long exec_init(void)
{
    static const char *const arguments[] = {"init", 0};
    static const char *const environment[] = {0};
    return sys(SYS_execve, "/.atoll/init", arguments, environment);
}

/* All steps in order. Returns -errno of the one named by failed_step; on success it does not return. */
static long become_sandbox(void)
{
#define DO(step, call) STEP(&request, &failed_step, STEP_##step, call)
    reset_signals();
    DO(LOOPBACK, bring_up_loopback());
    DO(HELLO, say_hello());
    /* While the host writes the id map, everything that needs none: */
    if (self_mapped())
        DO(SELF_MAP, map_self());
    DO(PROC, mount_proc());
    DO(NO_USER_NAMESPACES, forbid_user_namespaces());
    DO(PROC_MASKS, mask_proc());
    DO(PROC_READ_ONLY, make_proc_sys_read_only());
    DO(HOSTNAME, set_hostname());
    DO(RLIMITS, set_rlimits());
    DO(CGROUP_ENTER, enter_cgroups());
    DO(GO, wait_for_go());
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
    DO(DESCRIPTORS, keep_only_control());
    DO(EXEC_INIT, exec_init());
#undef DO
    return -EIO;
}

static int child_main(void *unused)
{
    (void)unused;
    failed_error = become_sandbox();
    sys(SYS_exit_group, 1);
    __builtin_unreachable();
}

/* clone3 on a stack of its own: glibc has no wrapper that takes a cgroup. */
static long clone_into(struct clone_args *arguments)
{
#if defined(__x86_64__)
    register int (*function)(void *) __asm__("r12") = child_main;
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
                     : "a"(SYS_clone3), "D"(arguments), "S"(sizeof *arguments), "r"(function)
                     : "rcx", "r11", "memory", "cc");
    return result;
#else
    register int (*function)(void *) __asm__("x9") = child_main;
    register long x8 __asm__("x8") = SYS_clone3;
    register long x0 __asm__("x0") = (long)arguments;
    register long x1 __asm__("x1") = sizeof *arguments;
    __asm__ volatile("svc 0\n\t"
                     "cbnz x0, 1f\n\t"
                     "mov x29, #0\n\t"
                     "blr x9\n"
                     "1:"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(function)
                     : "memory", "cc", "x30");
    return x0;
#endif
}

static long clone_child(void)
{
    STEP(&request, &failed_step, STEP_CLONE, 0);
    struct clone_args arguments = {
        .flags = NAMESPACES | CLONE_VM | CLONE_VFORK,
        .exit_signal = SIGCHLD,
        .stack = (uint64_t)(uintptr_t)stack,
        .stack_size = sizeof stack,
    };
    if (request.flags & SPAWN_FLAG_CGROUP_INTO) {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = (uint64_t)cgroup_fds()[0];
    }
    return clone_into(&arguments);
}

static struct step_reply spawn(void)
{
    failed_step = STEP_CLONE;
    failed_error = 0;
    long pid = clone_child();
    if (pid < 0)
        failed_error = pid;
    struct step_reply reply = {.step = failed_error ? failed_step : STEP_NONE, .error = (int)-failed_error};
    reply.pid = pid > 0 ? (int)pid : 0;
    return reply;
}

static int valid_request(long length)
{
    uint32_t expected = 1 + request.cgroup_fds + request.mounts;
    return length == sizeof request && request.version == ATOLL_VERSION && request.cgroup_fds <= ATOLL_MAX_CGROUP_FDS &&
           request.mounts <= ATOLL_MAX_MOUNTS && (uint32_t)passed_count == expected;
}

static void load_filter(int fd)
{
    struct stat facts;
    if (fstat(fd, &facts) || facts.st_size == 0 || facts.st_size % sizeof(struct sock_filter))
        sys(SYS_exit_group, STEP_ZYGOTE_FILTER);
    filter_program.len = (unsigned short)(facts.st_size / sizeof(struct sock_filter));
    filter_program.filter = mmap(0, facts.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (filter_program.filter == MAP_FAILED)
        sys(SYS_exit_group, STEP_ZYGOTE_FILTER);
    sys(SYS_close, fd);
}

_Noreturn void serve_zygote(int control, int filter)
{
    load_filter(filter);
    signal(SIGCHLD, SIG_IGN); /* sandboxes that end leave no zombie */
    for (;;) {
        long length = receive_message(control, &request, sizeof request, passed, &passed_count);
        if (length <= 0)
            sys(SYS_exit_group, 0);
        struct step_reply reply = {.step = STEP_CLONE, .error = EPROTO};
        if (valid_request(length))
            reply = spawn();
        for (int i = 0; i < passed_count; i++)
            sys(SYS_close, passed[i]);
        send_message(control, &reply, sizeof reply, -1);
    }
}
