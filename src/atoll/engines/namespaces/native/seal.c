/* Giving up every privilege for good: ids, capabilities, Landlock, the system-call filter. */
#define _GNU_SOURCE
#include "seal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "identity.h"
#include "steps.h"
#include "sys.h"

static struct sock_fprog filter_program;

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

/* Without root they cannot be dropped. */
static long drop_groups(const struct spawn_request *request)
{
    return request->flags & SPAWN_FLAG_SELF_MAP ? 0 : sys(SYS_setgroups, 0, 0);
}

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
static long landlock_rules(const struct spawn_request *request, int ruleset, uint64_t handled)
{
    static const char *const writable[] = {"/workspace", "/tmp", "/home/sandbox", "/dev/shm"};
    long outcome = landlock_allow(ruleset, "/", LANDLOCK_READ, handled);
    for (size_t i = 0; i < sizeof writable / sizeof *writable && !outcome; i++)
        outcome = landlock_allow(ruleset, writable[i], ~0ULL, handled);
    for (uint32_t i = 0; i < request->mounts && !outcome; i++)
        if (request->mount[i].writable)
            outcome = landlock_allow(ruleset, request->mount[i].path, ~0ULL, handled);
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

static long apply_landlock(const struct spawn_request *request)
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
    long outcome = landlock_rules(request, (int)ruleset, attributes.handled_access_fs);
    if (!outcome)
        outcome = sys(SYS_landlock_restrict_self, ruleset, 0);
    sys(SYS_close, ruleset);
    return outcome;
}

long load_filter(int fd)
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

static long apply_filter(void) { return sys(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter_program); }

long seal(const struct spawn_request *request, volatile int *failed)
{
#define DO(step, call) STEP(request, failed, STEP_##step, call)
    DO(GROUPS, drop_groups(request));
    DO(GROUP_ID, sys(SYS_setresgid, SANDBOX_ID, SANDBOX_ID, SANDBOX_ID));
    DO(USER_ID, sys(SYS_setresuid, SANDBOX_ID, SANDBOX_ID, SANDBOX_ID));
    DO(BOUNDING_SET, drop_bounding_set());
    DO(AMBIENT_SET, clear_ambient_set());
    DO(SECUREBITS, lock_securebits());
    DO(CAPABILITIES, drop_capabilities());
    DO(NO_NEW_PRIVILEGES, sys(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    DO(LANDLOCK, apply_landlock(request));
    DO(FILTER, apply_filter());
#undef DO
    return 0;
}
