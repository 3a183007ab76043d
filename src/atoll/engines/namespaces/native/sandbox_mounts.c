/* The trees of one sandbox: a /proc of its own with what tells too much covered, memory to write to, and what the host
 * lends. */
#define _GNU_SOURCE
#include "sandbox_mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sys/mount.h>

#include "identity.h"
#include "sys.h"

long mount_proc(void)
{
    return sys(SYS_mount, "proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, 0);
}

static long mask(const char *path, const char *with)
{
    long outcome = sys(SYS_mount, with, path, 0, MS_BIND, 0);
    return outcome == -ENOENT ? 0 : outcome; /* what this kernel does not have needs no mask */
}

long mask_proc(void)
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

long make_proc_sys_read_only(void)
{
    long outcome = sys(SYS_mount, "/proc/sys", "/proc/sys", 0, MS_BIND, 0);
    if (outcome)
        return outcome;
    return sys(SYS_mount, 0, "/proc/sys", 0,
               MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, 0);
}

long mount_terminals(void)
{
    return sys(SYS_mount, "devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
               "newinstance,ptmxmode=0666,mode=0620,max=256");
}

static long mount_tree(const char *path, const char *mode, uint64_t bytes, uint32_t inodes, unsigned long flags)
{
    char options[160], *end = put_text(options, "mode=");
    end = put_text(end, mode);
    end = put_text(end, ",uid=65532,gid=65532,size=");
    end = put_number(end, bytes);
    end = put_text(end, ",nr_inodes=");
    put_number(end, inodes);
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

long mount_shm(const struct spawn_request *request)
{
    return mount_tree("/dev/shm", "1777", request->shm_bytes, request->inodes, MS_NOEXEC);
}

long mount_tmp(const struct spawn_request *request)
{
    return mount_tree("/tmp", "1777", request->tmp_bytes, request->inodes, 0);
}

long mount_home(const struct spawn_request *request)
{
    return mount_tree("/home/sandbox", "0700", request->home_bytes, request->inodes, 0);
}

long mount_workspace(const struct spawn_request *request, const int *fds)
{
    if (request->workspace_bytes)
        return mount_tree("/workspace", "0755", request->workspace_bytes, request->inodes, 0);
    return request->mounts ? attach_mount(fds[0], "/workspace") : -EINVAL;
}

long mount_others(const struct spawn_request *request, const int *fds)
{
    uint32_t first = request->workspace_bytes ? 0 : 1;
    int wants_mnt = 0;
    for (uint32_t i = first; i < request->mounts; i++)
        wants_mnt |= is_below_mnt(&request->mount[i]);
    long outcome = wants_mnt ? mount_tree("/mnt", "0755", 65536, request->inodes, 0) : 0;
    for (uint32_t i = first; i < request->mounts && !outcome; i++) {
        outcome = make_directories(request->mount[i].path);
        if (!outcome)
            outcome = attach_mount(fds[i], request->mount[i].path);
    }
    if (wants_mnt && !outcome)
        outcome = sys(SYS_mount, 0, "/mnt", 0, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, 0);
    return outcome;
}
