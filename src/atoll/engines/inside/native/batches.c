/* Many small files in one request: entries, one behind another in memory of the host's. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <sys/mman.h>

#include "files.h"

void *memcpy(void *restrict target, const void *restrict source, size_t count);

static char path[MOST_PATH];

static int same_text(const char *one, const char *other)
{
    while (*one && *one == *other) {
        one++;
        other++;
    }
    return *one == *other;
}

struct batch {
    char *start;
    uint64_t length, at;
};

static long map_batch(struct batch *batch, int fd, int protection, int sharing)
{
    struct statx facts;
    long outcome = fd < 0 ? -EBADF : sys(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_SIZE, &facts);
    if (outcome)
        return outcome;
    long start = sys(SYS_mmap, 0, facts.stx_size, protection, sharing, fd, 0);
    if (start < 0 && start > -4096)
        return start;
    *batch = (struct batch){.start = (char *)start, .length = facts.stx_size};
    return 0;
}

static void unmap_batch(struct batch *batch)
{
    if (batch->start)
        sys(SYS_munmap, batch->start, batch->length);
}

/* Takes `length` bytes of a batch; 0 if it has less. */
static char *take(struct batch *batch, uint64_t length)
{
    if (batch->length - batch->at < length)
        return 0;
    batch->at += length;
    return batch->start + batch->at - length;
}

/* Takes the next entry and leaves its path in `path`. */
static long take_entry(struct batch *batch, struct files_entry *entry)
{
    const char *head = take(batch, sizeof *entry);
    if (!head)
        return -EPROTO;
    memcpy(entry, head, sizeof *entry);
    const char *name = entry->path_bytes < MOST_PATH ? take(batch, entry->path_bytes) : 0;
    if (!name)
        return -EPROTO;
    copy_text(path, name, entry->path_bytes);
    return 0;
}

/* The directory that the file before went to: files of a batch mostly lie side by side. */
struct folder {
    char path[MOST_PATH];
    long fd;
};

static void close_folder(struct folder *folder)
{
    if (folder->fd >= 0)
        sys(SYS_close, folder->fd);
    folder->fd = -1;
}

/* Opens the directory that holds `path`, made if need be; leaves its last component in `leaf`. */
static long open_folder(struct folder *folder, char **leaf)
{
    char *last = split(path);
    *leaf = last ? last : path;
    const char *wanted = last ? path : ".";
    if (folder->fd >= 0 && same_text(folder->path, wanted))
        return 0;
    close_folder(folder);
    put_text(folder->path, wanted);
    long outcome = last ? make_directories(folder->path) : 0;
    folder->fd = outcome ? outcome : open_beneath(folder->path, O_PATH | O_DIRECTORY);
    return folder->fd < 0 ? folder->fd : 0;
}

static long write_entry(struct folder *folder, const struct files_entry *entry, const char *data)
{
    char *leaf, name[64];
    long outcome = open_folder(folder, &leaf);
    if (outcome)
        return outcome;
    long fd = make_temporary((int)folder->fd, name);
    if (fd < 0)
        return fd;
    outcome = write_all((int)fd, data, entry->data_bytes);
    if (!outcome)
        outcome = sys(SYS_fchmod, fd, entry->mode & 0777);
    return put_in_place((int)folder->fd, name, leaf, (int)fd, outcome);
}

long write_many(struct files_reply *reply, int from)
{
    static struct folder folder = {.fd = -1};
    struct batch batch = {0};
    long outcome = map_batch(&batch, from, PROT_READ, MAP_PRIVATE);
    while (!outcome && batch.at < batch.length) {
        struct files_entry entry;
        outcome = take_entry(&batch, &entry);
        if (outcome)
            break;
        const char *data = take(&batch, entry.data_bytes);
        if (!data)
            outcome = -EPROTO;
        else
            outcome = entry.is_directory ? make_directories(path) : write_entry(&folder, &entry, data);
        reply->size += !outcome;
    }
    close_folder(&folder);
    unmap_batch(&batch);
    return outcome;
}

/* Reads a regular file up to `most` bytes; returns their number. */
static long read_file(char *data, uint32_t most)
{
    struct files_reply facts;
    int fd = -1;
    long outcome = open_regular(path, &facts, &fd);
    uint32_t total = 0;
    while (!outcome && total < most) {
        long length = sys(SYS_read, fd, data + total, most - total);
        if (length == 0)
            break;
        if (length > 0)
            total += (uint32_t)length;
        else if (length != -EINTR)
            outcome = length;
    }
    if (fd >= 0)
        sys(SYS_close, fd);
    return outcome ? outcome : total;
}

long read_many(int from, int to)
{
    struct batch batch = {0}, answers = {0};
    long outcome = map_batch(&batch, from, PROT_READ, MAP_PRIVATE);
    if (!outcome)
        outcome = map_batch(&answers, to, PROT_READ | PROT_WRITE, MAP_SHARED);
    while (!outcome && batch.at < batch.length) {
        struct files_entry entry;
        outcome = take_entry(&batch, &entry);
        char *head = outcome ? 0 : take(&answers, sizeof(struct files_content) + (uint64_t)entry.data_bytes);
        if (!head) {
            outcome = -EPROTO;
            break;
        }
        long length = read_file(head + sizeof(struct files_content), entry.data_bytes);
        struct files_content content = {.error = length < 0 ? (int32_t)-length : 0,
                                        .data_bytes = length < 0 ? 0 : (uint32_t)length};
        memcpy(head, &content, sizeof content);
    }
    unmap_batch(&batch);
    unmap_batch(&answers);
    return outcome;
}
