/* The walls around the copier. See walls.h.
 *
 * Each holds without the others. A receiver can make files and directories below its folder, fill the files that it
 * made, and remove files; it can open none that is there. A sender can list and read below its folder, and write to
 * nothing but its pipe and its report. Any other call ends the process. */
#define _GNU_SOURCE
#include "walls.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "trees.h"

#ifndef ATOLL_WITHOUT
#define ATOLL_WITHOUT 0
#endif

#define RAISE(wall, call)                                      \
    do {                                                       \
        long outcome_ = (ATOLL_WITHOUT) & (wall) ? 0 : (call); \
        if (outcome_ < 0)                                      \
            return outcome_;                                   \
    } while (0)

/* --- descriptors and limits ------------------------------------------------------------------------- */

static long limit_at_most(int resource, uint64_t most)
{
    struct {
        uint64_t soft, hard;
    } limits;
    long outcome = sys(SYS_prlimit64, 0, resource, 0, &limits);
    if (outcome)
        return outcome;
    limits.soft = limits.hard = limits.hard < most ? limits.hard : most;
    return sys(SYS_prlimit64, 0, resource, &limits, 0);
}

static long set_rlimits(unsigned kept)
{
    /* One for each level of the tree, one for a file, and one for a level too many, which is opened first. */
    long outcome = limit_at_most(RLIMIT_NOFILE, kept + ATOLL_MAX_DEPTH + 2);
    if (!outcome)
        outcome = limit_at_most(RLIMIT_CORE, 0);
    if (!outcome)
        outcome = limit_at_most(RLIMIT_NPROC, 0);
    return outcome;
}

/* --- what can be named ------------------------------------------------------------------------------ */

/* Only root may; then nothing outside has a name, also where the kernel lacks Landlock. */
static long make_root(int folder)
{
    long outcome = sys(SYS_fchdir, folder);
    if (!outcome)
        outcome = sys(SYS_chroot, ".");
    return outcome == -EPERM ? 0 : outcome;
}

/* Those of Landlock's first version. What came later (to move between directories, to truncate, to control devices)
 * needs calls that the filter does not let through. */
#define EVERY_RIGHT ((LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1)
#define RIGHTS_TO_SEND (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define RIGHTS_TO_RECEIVE                                                                           \
    (LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_WRITE_FILE |    \
     LANDLOCK_ACCESS_FS_READ_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE)

static long apply_landlock(enum copier_role role, int folder)
{
    struct landlock_ruleset_attr handled = {.handled_access_fs = EVERY_RIGHT};
    struct landlock_path_beneath_attr rule = {
        .allowed_access = role == COPIER_RECEIVES ? RIGHTS_TO_RECEIVE : RIGHTS_TO_SEND, .parent_fd = folder};
    if (sys(SYS_landlock_create_ruleset, 0, 0, LANDLOCK_CREATE_RULESET_VERSION) < 0)
        return 0; /* an older kernel: the other walls hold without it, and the doctor says so */
    long ruleset = sys(SYS_landlock_create_ruleset, &handled, sizeof handled.handled_access_fs, 0);
    if (ruleset < 0)
        return ruleset;
    long outcome = sys(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
    if (!outcome)
        outcome = sys(SYS_landlock_restrict_self, ruleset, 0);
    sys(SYS_close, ruleset);
    return outcome;
}

/* --- what may be done ------------------------------------------------------------------------------- */

/* Root copies trees of other people's, too, and into their directories; that is the one capability it keeps. */
static long drop_capabilities(enum copier_role role)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct held[2], kept[2] = {{0}, {0}};
    long outcome = sys(SYS_capget, &header, held);
    if (outcome)
        return outcome;
    uint32_t needed = 1U << (role == COPIER_RECEIVES ? CAP_DAC_OVERRIDE : CAP_DAC_READ_SEARCH);
    kept[0].permitted = kept[0].effective = held[0].effective & needed;
    return sys(SYS_capset, &header, kept);
}

#if defined(__x86_64__)
#define OWN_ARCHITECTURE AUDIT_ARCH_X86_64
#else
#define OWN_ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define SKIP_IF(value, count) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, count, 0)
#define SKIP_UNLESS(value, count) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, count)
#define ANSWER(verdict) BPF_STMT(BPF_RET | BPF_K, verdict)
#define KILL ANSWER(SECCOMP_RET_KILL_PROCESS)

#define LOAD_CALL LOAD(arch), SKIP_IF(OWN_ARCHITECTURE, 1), KILL, LOAD(nr)
#define ALLOW(call) SKIP_UNLESS(call, 1), ANSWER(SECCOMP_RET_ALLOW)
/* Only with just these flags as third argument, of which the kernel uses 32 bits. */
#define ALLOW_WITH(call, flags) \
    SKIP_UNLESS(call, 4), LOAD(args[2]), SKIP_UNLESS(flags, 1), ANSWER(SECCOMP_RET_ALLOW), LOAD(nr)
/* For the pipe, files that are open, the report and the end. */
#define ALLOW_COMMON                                                                              \
    ALLOW(SYS_read), ALLOW(SYS_write), ALLOW(SYS_splice), ALLOW(SYS_ppoll), ALLOW(SYS_close),     \
        ALLOW(SYS_pwrite64), ALLOW(SYS_exit_group)

static struct sock_filter to_send[] = {
    LOAD_CALL,
    ALLOW_COMMON,
    ALLOW(SYS_statx),
    ALLOW(SYS_getdents64),
    ALLOW_WITH(SYS_openat, TREE_OPEN_FILE),
    ALLOW_WITH(SYS_openat, TREE_OPEN_DIRECTORY),
    KILL,
};

static struct sock_filter to_receive[] = {
    LOAD_CALL,
    ALLOW_COMMON,
    ALLOW(SYS_mkdirat),
    ALLOW_WITH(SYS_openat, TREE_MAKE_FILE),
    ALLOW_WITH(SYS_openat, TREE_OPEN_DIRECTORY),
    ALLOW_WITH(SYS_unlinkat, 0),
    KILL,
};

static long apply_filter(enum copier_role role)
{
    struct sock_fprog program = {.len = sizeof to_send / sizeof *to_send, .filter = to_send};
    if (role == COPIER_RECEIVES)
        program = (struct sock_fprog){.len = sizeof to_receive / sizeof *to_receive, .filter = to_receive};
    return sys(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

long raise_walls(enum copier_role role, int folder, unsigned kept)
{
    long outcome = sys(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (outcome)
        return outcome;
    RAISE(WALL_DESCRIPTORS, sys(SYS_close_range, kept, ~0U, 0));
    RAISE(WALL_RLIMITS, set_rlimits(kept));
    RAISE(WALL_ROOT, make_root(folder));
    RAISE(WALL_LANDLOCK, apply_landlock(role, folder));
    RAISE(WALL_CAPABILITIES, drop_capabilities(role));
    RAISE(WALL_FILTER, apply_filter(role));
    return 0;
}
