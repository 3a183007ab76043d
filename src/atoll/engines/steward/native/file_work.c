/* One piece of file work, in a process of its own: it may wait, and be killed, as any program inside.
 *
 * The answer, and what was asked for behind it, go to its output. What is to be written comes by its input, in pieces with
 * their length in front; one of no length says that it was all: a host that ends half-way changes nothing. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "files.h"
#include "steward.h"

#define ENTRIES 32768

static char path[MOST_PATH], target[MOST_PATH], piece[ATOLL_MAX_DATA];
static struct files_request head;
static int in, out;

static long read_exactly(int fd, char *data, size_t length)
{
    for (size_t at = 0; at < length;) {
        long part = sys(SYS_read, fd, data + at, length - at);
        if (part == -EINTR)
            continue;
        if (part <= 0)
            return part < 0 ? part : -ECANCELED;
        at += (size_t)part;
    }
    return 0;
}

/* Copies what comes in to a file; one byte too many is an error, not a cut. */
static long receive(int fd, uint64_t most)
{
    for (uint64_t total = 0;;) {
        uint32_t length;
        long outcome = read_exactly(in, (char *)&length, sizeof length);
        if (outcome || !length)
            return outcome;
        if (length > sizeof piece)
            return -EPROTO;
        outcome = read_exactly(in, piece, length);
        if (!outcome && (total += length) > most)
            outcome = -EFBIG;
        if (!outcome)
            outcome = write_all(fd, piece, length);
        if (outcome)
            return outcome;
    }
}

static void answer(const struct files_reply *reply) { write_all(out, (const char *)reply, sizeof *reply); }

/* Writes up to `most` bytes of a file, from an offset on, to the output. */
static void send_file(int fd, uint64_t offset, uint64_t most)
{
    while (most) {
        long length = sys(SYS_pread64, fd, piece, most < sizeof piece ? most : sizeof piece, offset);
        if (length == -EINTR)
            continue;
        if (length <= 0 || write_all(out, piece, length))
            return;
        offset += (uint64_t)length;
        most -= (uint64_t)length;
    }
}

/* The mode has the offset and the most that is wanted, if any, in the place of data. */
struct wanted_part {
    uint64_t offset, length;
};

static long read_one(struct files_reply *reply, const struct wanted_part *part)
{
    int fd = -1;
    long outcome = open_regular(path, reply, &fd);
    if (outcome)
        return outcome;
    answer(reply);
    uint64_t left = reply->size > part->offset ? reply->size - part->offset : 0;
    send_file(fd, part->offset, left < part->length ? left : part->length);
    leave(0);
}

struct directory_entry {
    uint64_t inode;
    int64_t offset;
    unsigned short length;
    unsigned char type;
    char name[];
};

static int is_dots(const char *name) { return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2])); }

static void send_entry(int folder, const char *name)
{
    struct files_reply facts;
    if (is_dots(name) || describe(folder, name, &facts))
        return; /* or it is gone meanwhile */
    struct listed_file listed = {.mode = facts.mode, .name_bytes = (uint32_t)text_length(name), .size = facts.size,
                                 .modified_ns = (uint64_t)facts.modified_ns};
    if (write_all(out, (const char *)&listed, sizeof listed) || write_all(out, name, listed.name_bytes))
        leave(0); /* it was more than the host wanted to know */
}

static long list_one(struct files_reply *reply)
{
    static char entries[ENTRIES];
    long length, fd = open_beneath(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return fd;
    long outcome = describe((int)fd, "", reply);
    if (outcome)
        return outcome;
    answer(reply);
    while ((length = sys(SYS_getdents64, fd, entries, sizeof entries)) > 0)
        for (long at = 0; at < length;) {
            const struct directory_entry *entry = (const struct directory_entry *)(entries + at);
            at += entry->length;
            send_entry((int)fd, entry->name);
        }
    leave(0);
}

static long write_one(struct files_reply *reply)
{
    char *leaf, name[64];
    long parent = open_parent(path, &leaf, 1);
    if (parent < 0)
        return parent;
    long fd = make_temporary((int)parent, name);
    if (fd < 0)
        return fd;
    long outcome = receive((int)fd, head.most_bytes);
    if (!outcome)
        outcome = sys(SYS_fchmod, fd, head.mode & 0777);
    if (!outcome)
        outcome = describe((int)fd, "", reply);
    return put_in_place((int)parent, name, leaf, (int)fd, outcome);
}

/* Takes a batch, whole, into memory of its own. */
static long receive_batch(void)
{
    long memory = sys(SYS_memfd_create, "batch", MFD_CLOEXEC);
    long outcome = memory < 0 ? memory : receive((int)memory, head.most_bytes);
    return outcome ? outcome : memory;
}

static long write_batch(struct files_reply *reply)
{
    long memory = receive_batch();
    return memory < 0 ? memory : write_many(reply, (int)memory);
}

static long read_batch(struct files_reply *reply, const struct wanted_part *part)
{
    long memory = receive_batch(), answers = sys(SYS_memfd_create, "answers", MFD_CLOEXEC);
    if (memory < 0 || answers < 0)
        return memory < 0 ? memory : answers;
    long outcome = sys(SYS_ftruncate, answers, part->length);
    if (!outcome)
        outcome = read_many((int)memory, (int)answers);
    if (outcome)
        return outcome;
    answer(reply);
    send_file((int)answers, 0, part->length);
    leave(0);
}

static long act(struct files_reply *reply, const struct wanted_part *part)
{
    switch (head.op) {
    case FILES_OP_STAT:
        return describe_path(path, reply);
    case FILES_OP_OPEN:
        return read_one(reply, part);
    case FILES_OP_OPEN_DIRECTORY:
        return list_one(reply);
    case FILES_OP_WRITE:
        return write_one(reply);
    case FILES_OP_MAKE_DIRECTORY:
        return make_directories(path);
    case FILES_OP_REMOVE:
        return remove_path(path, head.flags & FILES_FLAG_RECURSIVE);
    case FILES_OP_RENAME:
        return rename_path(path, target);
    case FILES_OP_WRITE_MANY:
        return write_batch(reply);
    case FILES_OP_READ_MANY:
        return read_batch(reply, part);
    default:
        return -EINVAL;
    }
}

static int is_valid(uint32_t length)
{
    return head.path_bytes < MOST_PATH && head.target_bytes < MOST_PATH && head.data_bytes == sizeof(struct wanted_part) &&
           length == sizeof head + head.path_bytes + head.target_bytes + head.data_bytes;
}

_Noreturn void do_file_work(const char *request, uint32_t length, int input, int output)
{
    struct files_reply reply = {0};
    struct wanted_part part;
    in = input;
    out = output;
    if (length < sizeof head)
        leave(1);
    copy_bytes((char *)&head, request, sizeof head);
    if (!is_valid(length))
        leave(1);
    request += sizeof head;
    copy_text(path, request, head.path_bytes);
    copy_text(target, request + head.path_bytes, head.target_bytes);
    copy_bytes((char *)&part, request + head.path_bytes + head.target_bytes, sizeof part);
    if (head.op == FILES_OP_CLEAR) { /* a workspace that cannot be entered is emptied, too */
        reply.error = (int32_t)-clear_tree(path, head.mode & 07777);
        answer(&reply);
        leave(0);
    }
    enter_workspace();
    reply.error = (int32_t)-act(&reply, &part);
    answer(&reply);
    leave(0);
}
