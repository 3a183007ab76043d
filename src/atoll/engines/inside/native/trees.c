/* Sends a tree of files and receives one. See trees.h.
 *
 * A record is a head, a name of one component, and as many bytes as the head says. ENTER makes a directory and goes
 * into it, LEAVE goes back; so no path is ever resolved, and each side holds one descriptor for each level. A file
 * has the size that its head says even if it changes meanwhile: it is cut or filled with zeros. */
#define _GNU_SOURCE
#include "trees.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <poll.h>
#include <sys/stat.h>
#include <time.h>

#define MOST_NAME 255
#define ROOM 262144
#define LARGE 65536
#define FLUSHED 32768
#define TEMPORARY ".atoll-"
#define NO_REPLACE 1 /* RENAME_NOREPLACE, which freestanding headers lack */
#define ENTRIES_ROOM 4096

struct directory_entry {
    uint64_t inode;
    int64_t offset;
    unsigned short length;
    unsigned char type;
    char name[];
};

enum entry_type { ENTRY_UNKNOWN = 0, ENTRY_DIRECTORY = 4, ENTRY_FILE = 8 };

struct level {
    int fd;
    int is_hidden;                           /* nobody else sees yet what is made here */
    char temporary[32], name[MOST_NAME + 1]; /* what it is called, and will be once it is left */
    uint32_t path_bytes;                     /* of the path without this level */
    long at, length;                         /* in `entries` */
    _Alignas(8) char entries[ENTRIES_ROOM];
};

struct tree {
    int pipe, depth;
    int skips_closed; /* what a mode keeps its owner out of is left out, too */
    uint64_t total_bytes;
    const struct tree_bounds *limits;
    struct tree_report *report;
    struct level *level;
    uint32_t start, end; /* of what `room` holds */
};

static struct level levels[ATOLL_MAX_DEPTH + 1];
static char room[ROOM];

static int is_dots(const char *name) { return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2])); }

/* Also towards the front within one buffer. */
static void copy_bytes(char *to, const char *from, uint64_t length)
{
    for (uint64_t i = 0; i < length; i++)
        to[i] = from[i];
}

char *temporary_name(char *name)
{
    static const char digits[] = "0123456789abcdef";
    unsigned char random[12];
    sys(SYS_getrandom, random, sizeof random, 0);
    char *end = put_text(name, TEMPORARY);
    for (size_t i = 0; i < sizeof random; i++)
        *end++ = digits[random[i] & 15];
    *end = 0;
    return name;
}

/* --- limits and the report -------------------------------------------------------------------------- */

static void append_name(struct tree *tree, const char *name)
{
    struct tree_report *report = tree->report;
    uint32_t length = (uint32_t)text_length(name), at = report->path_bytes;
    if (at + length + 1 >= sizeof report->path)
        return;
    if (at)
        report->path[at++] = '/';
    copy_bytes(report->path + at, name, length);
    report->path_bytes = at + length;
}

static void note_skipped(struct tree *tree, const char *name)
{
    struct tree_report *report = tree->report;
    uint32_t kept = report->path_bytes;
    append_name(tree, name);
    uint32_t length = report->path_bytes;
    if (report->skipped++ < ATOLL_MAX_SKIPPED && report->skipped_bytes + length + 1 <= sizeof report->skipped_paths) {
        copy_bytes(report->skipped_paths + report->skipped_bytes, report->path, length);
        report->skipped_bytes += length;
        report->skipped_paths[report->skipped_bytes++] = 0;
    }
    report->path_bytes = kept;
}

static long count_entry(struct tree *tree)
{
    struct tree_report *report = tree->report;
    if (report->entries++ == tree->limits->entries)
        report->limit = TREE_LIMIT_ENTRIES;
    else if ((uint64_t)tree->depth + 1 > tree->limits->depth)
        report->limit = TREE_LIMIT_DEPTH;
    return report->limit ? -E2BIG : 0;
}

static long count_bytes(struct tree *tree, uint64_t bytes)
{
    if (bytes > tree->limits->total_bytes - tree->total_bytes) {
        tree->report->limit = TREE_LIMIT_BYTES;
        return -E2BIG;
    }
    tree->total_bytes += bytes;
    return 0;
}

/* --- levels ----------------------------------------------------------------------------------------- */

static long enter(struct tree *tree, long fd, const char *name)
{
    if (fd < 0)
        return fd;
    if (tree->depth == ATOLL_MAX_DEPTH) {
        sys(SYS_close, fd);
        return -ELOOP;
    }
    struct level *level = &levels[++tree->depth];
    level->fd = (int)fd;
    level->is_hidden = 0;
    level->temporary[0] = 0;
    level->path_bytes = tree->report->path_bytes;
    level->at = level->length = 0;
    tree->level = level;
    append_name(tree, name);
    return 0;
}

static long leave_level(struct tree *tree)
{
    struct level *level = tree->level, *above = &levels[--tree->depth];
    long outcome = 0;
    if (level->temporary[0])
        outcome = sys(SYS_renameat2, above->fd, level->temporary, above->fd, level->name, NO_REPLACE);
    sys(SYS_close, level->fd);
    tree->report->path_bytes = level->path_bytes;
    tree->level = above;
    return outcome;
}

static void begin(struct tree *tree, int folder)
{
    *tree->report = (struct tree_report){0};
    levels[0].fd = folder;
    levels[0].at = levels[0].length = levels[0].is_hidden = 0;
    tree->level = &levels[0];
}

static void finish(struct tree *tree, long outcome, const char *name)
{
    tree->report->error = (int32_t)-outcome;
    if (outcome)
        append_name(tree, name);
    uint32_t told = tree->report->path_bytes;
    while (tree->depth)
        leave_level(tree);
    tree->report->path_bytes = told;
    tree->report->path[told] = 0;
}

/* --- the pipe --------------------------------------------------------------------------------------- */

/* Whoever is stopped or asleep on the other side is not waited for without end. */
static long await(const struct tree *tree, short events)
{
    struct pollfd watched = {.fd = tree->pipe, .events = events};
    uint64_t milliseconds = tree->limits->patience_ms;
    struct timespec patience = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};
    long ready;
    do
        ready = sys(SYS_ppoll, &watched, 1, &patience, 0, 0);
    while (ready == -EINTR);
    return ready > 0 ? 0 : ready ? ready : -ETIMEDOUT;
}

static long flush(struct tree *tree)
{
    while (tree->start < tree->end) {
        long outcome = await(tree, POLLOUT);
        if (outcome)
            return outcome;
        long length = sys(SYS_write, tree->pipe, room + tree->start, tree->end - tree->start);
        if (length < 0 && length != -EINTR && length != -EAGAIN)
            return length;
        tree->start += length > 0 ? (uint32_t)length : 0;
    }
    tree->start = tree->end = 0;
    return 0;
}

/* Reads until `wanted` bytes are there; the end of the stream comes too early by then. */
static long need(struct tree *tree, uint32_t wanted)
{
    if (tree->end - tree->start >= wanted)
        return 0;
    if (tree->start == tree->end)
        tree->start = tree->end = 0;
    if (ROOM - tree->start < wanted) {
        copy_bytes(room, room + tree->start, tree->end - tree->start);
        tree->end -= tree->start;
        tree->start = 0;
    }
    while (tree->end - tree->start < wanted) {
        long outcome = await(tree, POLLIN);
        if (outcome)
            return outcome;
        long length = sys(SYS_read, tree->pipe, room + tree->end, ROOM - tree->end);
        if (length == 0)
            return -ECONNRESET;
        if (length < 0 && length != -EINTR && length != -EAGAIN)
            return length;
        tree->end += length > 0 ? (uint32_t)length : 0;
    }
    return 0;
}

/* --- sending ---------------------------------------------------------------------------------------- */

static long put_record(struct tree *tree, uint32_t kind, const char *name, uint32_t mode, uint64_t data_bytes)
{
    struct tree_record record = {
        .kind = kind, .mode = mode, .name_bytes = (uint32_t)text_length(name), .data_bytes = data_bytes};
    /* Not only when it is full: the other side works at the same time. */
    if (tree->end >= FLUSHED) {
        long outcome = flush(tree);
        if (outcome)
            return outcome;
    }
    copy_bytes(room + tree->end, (const char *)&record, sizeof record);
    copy_bytes(room + tree->end + sizeof record, name, record.name_bytes);
    tree->end += (uint32_t)sizeof record + record.name_bytes;
    return 0;
}

static long put_skipped(struct tree *tree, const char *name)
{
    note_skipped(tree, name);
    return put_record(tree, TREE_KIND_SKIPPED, name, 0, 0);
}

static int is_closed(const struct tree *tree, long outcome)
{
    return tree->skips_closed && (outcome == -EACCES || outcome == -EPERM);
}

/* Whether something became another thing since it was listed; any other failure ends the whole. */
static int is_other(long outcome)
{
    return outcome == -ENOENT || outcome == -ELOOP || outcome == -ENXIO || outcome == -ENOTDIR;
}

/* Sends `left` bytes of a file through the room; zeros for what is missing by now. */
static long put_data(struct tree *tree, int fd, uint64_t left)
{
    while (left) {
        long outcome = tree->end == ROOM ? flush(tree) : 0;
        if (outcome)
            return outcome;
        uint64_t most = ROOM - tree->end < left ? ROOM - tree->end : left;
        long length = sys(SYS_read, fd, room + tree->end, most);
        if (length == -EINTR)
            continue;
        if (length < 0)
            return length;
        if (length == 0)
            for (length = 0; (uint64_t)length < most; length++)
                room[tree->end + (uint32_t)length] = 0;
        tree->end += (uint32_t)length;
        left -= (uint64_t)length;
    }
    return 0;
}

/* Sends a large file as the pages that hold it, down to what is missing by now. */
static long lend_pages(struct tree *tree, int fd, uint64_t *left)
{
    long outcome = flush(tree);
    while (!outcome && *left) {
        outcome = await(tree, POLLOUT);
        long length = outcome ? outcome : sys(SYS_splice, fd, 0, tree->pipe, 0, *left, 0);
        if (length == 0)
            break;
        if (length > 0)
            *left -= (uint64_t)length;
        else if (length != -EINTR && length != -EAGAIN)
            outcome = length;
    }
    return outcome;
}

static long put_content(struct tree *tree, int fd, const char *name)
{
    struct statx facts;
    long outcome = sys(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &facts);
    if (outcome)
        return outcome;
    if (!S_ISREG(facts.stx_mode))
        return put_skipped(tree, name);
    uint64_t left = facts.stx_size;
    outcome = count_bytes(tree, left);
    if (!outcome)
        outcome = put_record(tree, TREE_KIND_FILE, name, facts.stx_mode & 0777, left);
    if (!outcome && left > LARGE)
        outcome = lend_pages(tree, fd, &left);
    if (!outcome)
        outcome = put_data(tree, fd, left);
    if (!outcome) {
        tree->report->files++;
        tree->report->total_bytes += facts.stx_size;
    }
    return outcome;
}

static long put_file(struct tree *tree, const char *name)
{
    long fd = sys(SYS_openat, tree->level->fd, name, TREE_OPEN_FILE, 0);
    if (fd < 0)
        return is_closed(tree, fd) || is_other(fd) ? put_skipped(tree, name) : fd;
    long outcome = put_content(tree, (int)fd, name);
    sys(SYS_close, fd);
    return outcome;
}

static long put_directory(struct tree *tree, const char *name)
{
    long fd = sys(SYS_openat, tree->level->fd, name, TREE_OPEN_DIRECTORY, 0);
    if (fd < 0 && !is_closed(tree, fd))
        return is_other(fd) ? put_skipped(tree, name) : fd;
    tree->report->directories++;
    long outcome = put_record(tree, TREE_KIND_ENTER, name, 0, 0);
    if (outcome || fd >= 0)
        return outcome ? outcome : enter(tree, fd, name);
    outcome = put_record(tree, TREE_KIND_LEAVE, "", 0, 0);
    return outcome ? outcome : put_skipped(tree, name);
}

static unsigned char type_of(struct tree *tree, const struct directory_entry *entry)
{
    struct statx facts;
    if (entry->type != ENTRY_UNKNOWN)
        return entry->type;
    if (sys(SYS_statx, tree->level->fd, entry->name, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &facts))
        return ENTRY_UNKNOWN;
    return (facts.stx_mode & S_IFMT) >> 12;
}

static long put_entry(struct tree *tree, const struct directory_entry *entry)
{
    if (is_dots(entry->name))
        return 0;
    long outcome = count_entry(tree);
    if (outcome)
        return outcome;
    switch (type_of(tree, entry)) {
    case ENTRY_DIRECTORY:
        return put_directory(tree, entry->name);
    case ENTRY_FILE:
        return put_file(tree, entry->name);
    default:
        return put_skipped(tree, entry->name);
    }
}

void send_tree(int folder, int pipe, int skip_closed, const struct tree_bounds *limits, struct tree_report *report)
{
    struct tree tree = {.pipe = pipe, .skips_closed = skip_closed, .limits = limits, .report = report};
    const char *name = "";
    long outcome = 0;
    for (begin(&tree, folder); !outcome;) {
        struct level *level = tree.level;
        if (level->at < level->length) {
            struct directory_entry *entry = (struct directory_entry *)(level->entries + level->at);
            level->at += entry->length;
            name = entry->name;
            outcome = put_entry(&tree, entry);
            continue;
        }
        level->at = 0;
        level->length = sys(SYS_getdents64, level->fd, level->entries, sizeof level->entries);
        name = "";
        if (level->length < 0 && level->length != -ENOENT) {
            outcome = level->length;
        } else if (level->length <= 0 && tree.depth) {
            leave_level(&tree);
            outcome = put_record(&tree, TREE_KIND_LEAVE, "", 0, 0);
        } else if (level->length <= 0) {
            outcome = put_record(&tree, TREE_KIND_END, "", 0, 0);
            break;
        }
    }
    finish(&tree, outcome ? outcome : flush(&tree), name);
}

/* --- receiving -------------------------------------------------------------------------------------- */

static long take_record(struct tree *tree, struct tree_record *record, char *name)
{
    long outcome = need(tree, sizeof *record);
    if (outcome)
        return outcome;
    copy_bytes((char *)record, room + tree->start, sizeof *record);
    tree->start += (uint32_t)sizeof *record;
    if (record->name_bytes > MOST_NAME)
        return -EPROTO;
    outcome = need(tree, record->name_bytes);
    if (outcome)
        return outcome;
    copy_bytes(name, room + tree->start, record->name_bytes);
    name[record->name_bytes] = 0;
    tree->start += record->name_bytes;
    return 0;
}

/* A name from the other side is one component and nothing else. */
static int is_component(const struct tree_record *record, const char *name)
{
    if (!record->name_bytes || is_dots(name))
        return 0;
    for (uint32_t i = 0; i < record->name_bytes; i++)
        if (!name[i] || name[i] == '/')
            return 0;
    return 1;
}

static long write_part(int fd, const char *data, uint64_t length)
{
    while (length) {
        long written = sys(SYS_write, fd, data, length);
        if (written < 0 && written != -EINTR)
            return written;
        data += written > 0 ? written : 0;
        length -= written > 0 ? (uint64_t)written : 0;
    }
    return 0;
}

static long take_data(struct tree *tree, int fd, uint64_t left)
{
    while (left) {
        uint64_t ready = tree->end - tree->start;
        long outcome = 0, length = 0;
        if (ready) {
            length = (long)(ready < left ? ready : left);
            outcome = write_part(fd, room + tree->start, (uint64_t)length);
            tree->start += (uint32_t)length;
        } else if (left <= LARGE) {
            outcome = need(tree, 1);
        } else if (!(outcome = await(tree, POLLIN))) {
            length = sys(SYS_splice, tree->pipe, 0, fd, 0, left, 0);
            outcome = length ? length : -ECONNRESET;
            outcome = outcome > 0 || outcome == -EINTR || outcome == -EAGAIN ? 0 : outcome;
        }
        if (outcome)
            return outcome;
        left -= length > 0 ? (uint64_t)length : 0;
    }
    return 0;
}

/* Under a name that nobody else has, then in place: readers see the old one or the new one, never a part. */
static long replace_file(struct tree *tree, const char *name, const struct tree_record *record)
{
    char temporary[64];
    int folder = tree->level->fd;
    long fd = sys(SYS_openat, folder, temporary_name(temporary), TREE_MAKE_FILE, 0600);
    if (fd < 0)
        return fd;
    long outcome = take_data(tree, (int)fd, record->data_bytes);
    if (!outcome)
        outcome = sys(SYS_fchmod, fd, record->mode & 0777);
    if (!outcome)
        outcome = sys(SYS_renameat2, folder, temporary, folder, name, 0);
    if (outcome)
        sys(SYS_unlinkat, folder, temporary, 0);
    sys(SYS_close, fd);
    return outcome;
}

/* Where nothing is to be replaced, or nobody looks yet. */
static long make_file(struct tree *tree, const char *name, const struct tree_record *record)
{
    long fd = sys(SYS_openat, tree->level->fd, name, TREE_MAKE_FILE, record->mode & 0777);
    if (fd < 0)
        return fd;
    long outcome = take_data(tree, (int)fd, record->data_bytes);
    if (outcome)
        sys(SYS_unlinkat, tree->level->fd, name, 0);
    sys(SYS_close, fd);
    return outcome;
}

static long take_file(struct tree *tree, const char *name, const struct tree_record *record, int replace)
{
    long outcome = count_bytes(tree, record->data_bytes);
    if (!outcome)
        outcome = (replace && !tree->level->is_hidden ? replace_file : make_file)(tree, name, record);
    if (!outcome) {
        tree->report->files++;
        tree->report->total_bytes += record->data_bytes;
    }
    return outcome;
}

static long open_directory(struct tree *tree, const char *name)
{
    return sys(SYS_openat, tree->level->fd, name, TREE_OPEN_DIRECTORY, 0);
}

/* A new directory gets its name when it is left: all that it holds appears at once, and no file needs to be moved. */
static long make_hidden(struct tree *tree, const char *name)
{
    char temporary[32];
    long outcome = sys(SYS_mkdirat, tree->level->fd, temporary_name(temporary), 0755);
    if (outcome)
        return outcome;
    outcome = enter(tree, open_directory(tree, temporary), name);
    if (outcome) {
        sys(SYS_unlinkat, tree->level->fd, temporary, AT_REMOVEDIR);
        return outcome;
    }
    tree->level->is_hidden = 1;
    put_text(tree->level->temporary, temporary);
    put_text(tree->level->name, name);
    return 0;
}

static long make_visible(struct tree *tree, const char *name)
{
    int is_hidden = tree->level->is_hidden;
    long outcome = sys(SYS_mkdirat, tree->level->fd, name, 0755);
    if (outcome && outcome != -EEXIST)
        return outcome;
    outcome = enter(tree, open_directory(tree, name), name);
    tree->level->is_hidden = is_hidden;
    return outcome;
}

static long take_directory(struct tree *tree, const char *name, int replace)
{
    long found = replace && !tree->level->is_hidden ? open_directory(tree, name) : -EEXIST;
    long outcome = found >= 0         ? enter(tree, found, name)
                   : found == -ENOENT ? make_hidden(tree, name)
                   : found == -EEXIST ? make_visible(tree, name)
                                      : found;
    tree->report->directories += !outcome;
    return outcome;
}

static long take_entry(struct tree *tree, const char *name, const struct tree_record *record, int replace)
{
    long outcome = is_component(record, name) ? count_entry(tree) : -EPROTO;
    if (outcome)
        return outcome;
    switch (record->kind) {
    case TREE_KIND_ENTER:
        return take_directory(tree, name, replace);
    case TREE_KIND_FILE:
        return take_file(tree, name, record, replace);
    case TREE_KIND_SKIPPED:
        note_skipped(tree, name);
        return 0;
    default:
        return -EPROTO;
    }
}

void receive_tree(int folder, int pipe, int replace, const struct tree_bounds *limits, struct tree_report *report)
{
    struct tree tree = {.pipe = pipe, .limits = limits, .report = report};
    static char name[MOST_NAME + 1];
    struct tree_record record = {0};
    long outcome = 0;
    for (begin(&tree, folder); !outcome;) {
        name[0] = 0;
        outcome = take_record(&tree, &record, name);
        if (outcome || record.kind == TREE_KIND_END)
            break;
        if (record.kind != TREE_KIND_LEAVE)
            outcome = take_entry(&tree, name, &record, replace);
        else if (tree.depth)
            outcome = leave_level(&tree);
        else
            outcome = -EPROTO;
    }
    finish(&tree, outcome, name);
}
