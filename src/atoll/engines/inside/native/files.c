/* The file server: does file work inside the sandbox, with the sandbox's rights and at the expense of its
 * memory. Whatever links or races hostile code prepares, nothing is reachable from here that it could
 * not reach itself. Paths are resolved beneath the workspace, links that lead out of it are refused. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/stat.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>

#include "files.h"
#include "guest.h"
#include "trees.h"

#define MOST_DATA 65536
#define MOST_SPLICED (1 << 20)
#define REMOVE_SECONDS 20

static union {
    struct files_request head;
    char bytes[sizeof(struct files_request) + 2 * MOST_PATH + MOST_DATA];
} message;
static char path[MOST_PATH], target[MOST_PATH];
static int root;

void enter_workspace(void)
{
    sys(SYS_prctl, PR_SET_NAME, "files", 0, 0, 0);
    sys(SYS_umask, 022);
    root = (int)sys(SYS_openat, AT_FDCWD, "/workspace", O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
}

long open_beneath(const char *name, uint64_t flags)
{
    struct open_how how = {.flags = flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    if (flags & O_PATH)
        how.flags &= ~(uint64_t)(O_NONBLOCK | O_NOCTTY);
    long fd;
    do /* the kernel asks to try again when something was renamed meanwhile */
        fd = sys(SYS_openat2, root, name, &how, sizeof how);
    while (fd == -EAGAIN || fd == -EINTR);
    return fd == -ENOSYS ? walk_beneath(root, name, how.flags) : fd;
}

char *split(char *name)
{
    char *slash = 0;
    for (char *at = name; *at; at++)
        if (*at == '/')
            slash = at;
    if (!slash)
        return 0;
    *slash = 0;
    return slash + 1;
}

static long make_directory_at(char *name)
{
    char *leaf = split(name);
    long parent = open_beneath(leaf ? name : ".", O_PATH | O_DIRECTORY);
    long outcome = parent < 0 ? parent : sys(SYS_mkdirat, parent, leaf ? leaf : name, 0755);
    if (leaf)
        leaf[-1] = '/';
    if (parent >= 0)
        sys(SYS_close, parent);
    return outcome == -EEXIST ? 0 : outcome;
}

long make_directories(char *name)
{
    long fd = open_beneath(name, O_PATH | O_DIRECTORY);
    if (fd != -ENOENT) {
        if (fd >= 0)
            sys(SYS_close, fd);
        return fd < 0 ? fd : 0;
    }
    for (char *at = name;; at++) {
        if (*at && *at != '/')
            continue;
        char kept = *at;
        *at = 0;
        long outcome = make_directory_at(name);
        *at = kept;
        if (outcome || !kept)
            return outcome;
    }
}

long open_parent(char *name, char **leaf, int make)
{
    char *last = split(name);
    *leaf = last ? last : name;
    if (!last)
        return open_beneath(".", O_PATH | O_DIRECTORY);
    long outcome = make ? make_directories(name) : 0;
    return outcome ? outcome : open_beneath(name, O_PATH | O_DIRECTORY);
}

long describe(int directory, const char *leaf, struct files_reply *reply)
{
    struct statx facts;
    int flags = AT_SYMLINK_NOFOLLOW | (*leaf ? 0 : AT_EMPTY_PATH);
    long outcome = sys(SYS_statx, directory, leaf, flags, STATX_BASIC_STATS, &facts);
    if (outcome)
        return outcome;
    reply->mode = facts.stx_mode;
    reply->size = facts.stx_size;
    reply->modified_ns = facts.stx_mtime.tv_sec * 1000000000LL + facts.stx_mtime.tv_nsec;
    return 0;
}

static int is_root(const char *name) { return name[0] == '.' && !name[1]; }

long describe_path(char *name, struct files_reply *reply)
{
    if (is_root(name))
        return describe(root, "", reply);
    char *leaf;
    long parent = open_parent(name, &leaf, 0);
    if (parent < 0)
        return parent;
    long outcome = describe((int)parent, leaf, reply);
    sys(SYS_close, parent);
    return outcome;
}

long open_regular(const char *name, struct files_reply *reply, int *fd)
{
    long opened = open_beneath(name, O_RDONLY);
    if (opened < 0)
        return opened;
    *fd = (int)opened;
    long outcome = describe(*fd, "", reply);
    if (outcome)
        return outcome;
    return S_ISREG(reply->mode) ? 0 : S_ISDIR(reply->mode) ? -EISDIR : -ENXIO;
}

static long answer_open_directory(struct files_reply *reply, int *fd)
{
    long opened = open_beneath(path, O_RDONLY | O_DIRECTORY);
    if (opened < 0)
        return opened;
    *fd = (int)opened;
    return describe(*fd, "", reply);
}

long write_all(int fd, const char *data, long length)
{
    while (length) {
        long written = sys(SYS_write, fd, data, length);
        if (written < 0 && written != -EINTR)
            return written;
        if (written > 0) {
            data += written;
            length -= written;
        }
    }
    return 0;
}

/* Copies until the end of the pipe `from`; one byte too many is an error, not a cut. */
static long copy_all(int fd, int from, uint64_t most)
{
    uint64_t total = 0;
    for (;;) {
        long length = sys(SYS_splice, from, 0, fd, 0, MOST_SPLICED, 0);
        if (length == -EINTR)
            continue;
        if (length <= 0)
            return length;
        if ((total += (uint64_t)length) > most)
            return -EFBIG;
    }
}

static long fill(int fd, const char *data, int from)
{
    if (!(message.head.flags & FILES_FLAG_FROM_DESCRIPTOR))
        return write_all(fd, data, message.head.data_bytes);
    return from < 0 ? -EBADF : copy_all(fd, from, message.head.most_bytes);
}

/* After a streamed file the host says that it was sent whole: one who dies half-way changes nothing. */
static long confirmed(int control)
{
    if (!(message.head.flags & FILES_FLAG_FROM_DESCRIPTOR))
        return 0;
    char byte = 0;
    int fds[PASSING_MOST], count;
    long length = receive_message(control, &byte, 1, fds, &count);
    close_fds(fds, count);
    return length == 1 && byte == 'y' ? 0 : -ECANCELED;
}

long make_temporary(int parent, char *name)
{
    return sys(SYS_openat, parent, temporary_name(name), O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600);
}

long put_in_place(int parent, const char *name, const char *leaf, int fd, long outcome)
{
    if (!outcome)
        outcome = sys(SYS_renameat2, parent, name, parent, leaf, 0);
    if (outcome)
        sys(SYS_unlinkat, parent, name, 0);
    sys(SYS_close, fd);
    return outcome;
}

static long answer_write(struct files_reply *reply, const char *data, int from, int control)
{
    char *leaf, name[64];
    long parent = open_parent(path, &leaf, 1);
    if (parent < 0)
        return parent;
    long fd = make_temporary((int)parent, name);
    long outcome = fd < 0 ? fd : fill((int)fd, data, from);
    if (!outcome)
        outcome = sys(SYS_fchmod, fd, message.head.mode & 0777);
    if (!outcome)
        outcome = confirmed(control);
    if (!outcome)
        outcome = describe((int)fd, "", reply);
    if (fd >= 0)
        outcome = put_in_place((int)parent, name, leaf, (int)fd, outcome);
    sys(SYS_close, parent);
    return outcome;
}

struct directory_entry {
    uint64_t inode;
    int64_t offset;
    unsigned short length;
    unsigned char type;
    char name[];
};

static int is_dots(const char *name) { return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2])); }

static long open_for_removal(int directory, const char *name)
{
    /* A mode of 000 keeps nobody out who owns the directory. */
    sys(SYS_fchmodat, directory, name, 0700);
    return sys(SYS_openat, directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
}

/* Unlinks what `directory` holds; directories in it are moved up to `top`, so that no depth is too deep. */
static long empty_into(int directory, int top)
{
    static char entries[8192];
    long length;
    while ((length = sys(SYS_getdents64, directory, entries, sizeof entries)) > 0)
        for (long at = 0; at < length;) {
            struct directory_entry *entry = (struct directory_entry *)(entries + at);
            at += entry->length;
            if (is_dots(entry->name))
                continue;
            long outcome = sys(SYS_unlinkat, directory, entry->name, 0);
            if (outcome != -EISDIR && outcome != -EPERM)
                continue;
            char name[64];
            sys(SYS_fchmodat, directory, entry->name, 0700);
            sys(SYS_renameat2, directory, entry->name, top, temporary_name(name), 0);
        }
    return length;
}

static long seconds(void)
{
    struct timespec now;
    sys(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* One pass over the directories in `top`; returns how many there were. */
static long remove_level(int top)
{
    static char entries[8192];
    long found = 0, length;
    sys(SYS_lseek, top, 0, SEEK_SET);
    while ((length = sys(SYS_getdents64, top, entries, sizeof entries)) > 0)
        for (long at = 0; at < length;) {
            struct directory_entry *entry = (struct directory_entry *)(entries + at);
            at += entry->length;
            if (is_dots(entry->name))
                continue;
            found++;
            long outcome = sys(SYS_unlinkat, top, entry->name, 0);
            if (outcome != -EISDIR && outcome != -EPERM)
                continue;
            long directory = open_for_removal(top, entry->name);
            if (directory < 0)
                return directory;
            empty_into((int)directory, top);
            sys(SYS_close, directory);
            sys(SYS_unlinkat, top, entry->name, AT_REMOVEDIR);
        }
    return length < 0 ? length : found;
}

long empty_directory(int top)
{
    long deadline = seconds() + REMOVE_SECONDS, left;
    while ((left = remove_level(top)) > 0)
        if (seconds() > deadline)
            return -EBUSY; /* somebody inside fills it as fast as we empty it */
    return left;
}

static long remove_tree(int parent, const char *leaf)
{
    long top = open_for_removal(parent, leaf);
    if (top < 0)
        return top;
    long left = empty_directory((int)top);
    sys(SYS_close, top);
    return left < 0 ? left : sys(SYS_unlinkat, parent, leaf, AT_REMOVEDIR);
}

long remove_path(char *name, int recursive)
{
    char *leaf;
    struct files_reply facts;
    long parent = open_parent(name, &leaf, 0);
    if (parent < 0)
        return parent;
    long outcome = describe((int)parent, leaf, &facts);
    if (!outcome && !S_ISDIR(facts.mode))
        outcome = sys(SYS_unlinkat, parent, leaf, 0);
    else if (!outcome && recursive)
        outcome = remove_tree((int)parent, leaf);
    else if (!outcome)
        outcome = sys(SYS_unlinkat, parent, leaf, AT_REMOVEDIR);
    sys(SYS_close, parent);
    return outcome;
}

long rename_path(char *name, char *new_name)
{
    char *from, *to;
    long source = open_parent(name, &from, 0);
    if (source < 0)
        return source;
    struct files_reply facts;
    long outcome = describe((int)source, from, &facts); /* no parents are made for what does not exist */
    long goal = outcome ? outcome : open_parent(new_name, &to, 1);
    if (goal >= 0) {
        outcome = sys(SYS_renameat2, source, from, goal, to, 0);
        sys(SYS_close, goal);
    } else {
        outcome = goal;
    }
    sys(SYS_close, source);
    return outcome;
}

/* Copies a whole tree between the directory at `path` and a pipe; the report goes to where the limits are. */
static long answer_tree(int pipe, int memory, int sending)
{
    static struct tree_work work;
    if (pipe < 0 || sys(SYS_pread64, memory, &work, sizeof work, 0) != sizeof work)
        return -EBADF;
    long outcome = sending ? 0 : make_directories(path);
    long folder = outcome ? outcome : open_beneath(path, O_RDONLY | O_DIRECTORY);
    if (folder < 0)
        return folder;
    sys(SYS_umask, 0); /* files get the modes that they have outside */
    if (sending)
        send_tree((int)folder, pipe, 1, &work.limits, &work.report);
    else
        receive_tree((int)folder, pipe, 1, &work.limits, &work.report);
    sys(SYS_umask, 022);
    sys(SYS_close, folder);
    return sys(SYS_pwrite64, memory, &work, sizeof work, 0) == sizeof work ? 0 : -EIO;
}

static long act(struct files_reply *reply, const char *data, const int *fds, int control, int *fd)
{
    int from = fds[0];
    switch (message.head.op) {
    case FILES_OP_STAT:
        return describe_path(path, reply);
    case FILES_OP_OPEN:
        return open_regular(path, reply, fd);
    case FILES_OP_OPEN_DIRECTORY:
        return answer_open_directory(reply, fd);
    case FILES_OP_WRITE:
        return answer_write(reply, data, from, control);
    case FILES_OP_MAKE_DIRECTORY:
        return make_directories(path);
    case FILES_OP_REMOVE:
        return remove_path(path, message.head.flags & FILES_FLAG_RECURSIVE);
    case FILES_OP_RENAME:
        return rename_path(path, target);
    case FILES_OP_WRITE_MANY:
        return write_many(reply, from);
    case FILES_OP_READ_MANY:
        return read_many(from, fds[1]);
    case FILES_OP_SEND_TREE:
        return answer_tree(from, fds[1], 1);
    case FILES_OP_RECEIVE_TREE:
        return answer_tree(from, fds[1], 0);
    default:
        return -EINVAL;
    }
}

void copy_text(char *to, const char *from, uint32_t length)
{
    for (uint32_t i = 0; i < length; i++)
        to[i] = from[i];
    to[length] = 0;
}

static int valid(long length)
{
    struct files_request *head = &message.head;
    return length >= (long)sizeof *head && head->path_bytes < MOST_PATH && head->target_bytes < MOST_PATH &&
           head->data_bytes <= MOST_DATA &&
           length == (long)(sizeof *head + head->path_bytes + head->target_bytes + head->data_bytes);
}

_Noreturn void serve_files(int control)
{
    enter_workspace();
    for (;;) {
        int fds[PASSING_MOST], count, fd = -1;
        long length = receive_message(control, &message, sizeof message, fds, &count);
        if (length <= 0)
            leave(0);
        struct files_reply reply = {.error = EPROTO};
        if (valid(length)) {
            const char *text = message.bytes + sizeof message.head;
            copy_text(path, text, message.head.path_bytes);
            copy_text(target, text + message.head.path_bytes, message.head.target_bytes);
            text += message.head.path_bytes + message.head.target_bytes;
            for (int i = count; i < PASSING_MOST; i++)
                fds[i] = -1;
            reply.error = (int32_t)-act(&reply, text, fds, control, &fd);
        }
        send_message(control, &reply, sizeof reply, reply.error ? -1 : fd);
        if (fd >= 0)
            sys(SYS_close, fd);
        close_fds(fds, count);
    }
}
