/* The children of this process: notice of their ends, and who they are. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/signalfd.h>

#include "guest.h"

#define MOST_BYTES 65536

int watch_children(void)
{
    uint64_t mask = 1ULL << (SIGCHLD - 1);
    return (int)sys(SYS_signalfd4, -1, &mask, sizeof mask, SFD_CLOEXEC | SFD_NONBLOCK);
}

void forget_notices(int watch)
{
    struct signalfd_siginfo info;
    while (sys(SYS_read, watch, &info, sizeof info) > 0)
        continue;
}

static long read_list(char *text)
{
    char path[64], *end = put_text(path, "/proc/self/task/");
    end = put_number(end, (uint64_t)sys(SYS_gettid));
    put_text(end, "/children");
    long fd = sys(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    long length = fd < 0 ? fd : sys(SYS_read, fd, text, MOST_BYTES);
    sys(SYS_close, fd);
    return length;
}

static int parse_numbers(const char *text, long length, int *numbers)
{
    int count = 0, number = 0;
    for (long i = 0; i < length; i++) {
        if (text[i] >= '0' && text[i] <= '9') {
            number = number * 10 + text[i] - '0';
        } else if (number) {
            numbers[count++] = number;
            number = 0;
        }
    }
    return count;
}

struct directory_entry {
    uint64_t inode;
    int64_t offset;
    unsigned short length;
    unsigned char type;
    char name[];
};

static int number_of(const char *name)
{
    int number = 0;
    for (; *name >= '0' && *name <= '9'; name++)
        number = number * 10 + *name - '0';
    return *name ? 0 : number;
}

int list_processes(int *pids, int most)
{
    static char entries[32768];
    long length, fd = sys(SYS_openat, AT_FDCWD, "/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    int count = 0;
    while (fd >= 0 && (length = sys(SYS_getdents64, fd, entries, sizeof entries)) > 0)
        for (long at = 0; at < length;) {
            const struct directory_entry *entry = (const struct directory_entry *)(entries + at);
            at += entry->length;
            int pid = number_of(entry->name);
            if (pid && count < most)
                pids[count++] = pid;
        }
    if (fd < 0)
        return -1;
    sys(SYS_close, fd);
    return count;
}

/* The name, which may hold anything, is in brackets; behind the last one come state and parent. */
static int parent_of(int pid)
{
    char path[64], text[512];
    put_text(put_number(put_text(path, "/proc/"), (uint64_t)pid), "/stat");
    long fd = sys(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    long length = fd < 0 ? fd : sys(SYS_read, fd, text, sizeof text - 1);
    if (fd >= 0)
        sys(SYS_close, fd);
    int parent[1] = {0};
    for (long at = length - 1; at > 0; at--)
        if (text[at] == ')') {
            long end = at + 4;
            while (end < length && text[end] != ' ')
                end++;
            parse_numbers(text + at + 4, end + 1 - at - 4, parent);
            break;
        }
    return parent[0];
}

/* For kernels that do not list children, such as gVisor's. */
static int find_children(int *found)
{
    static int all[MOST_BYTES / 2];
    int own = (int)sys(SYS_getpid), count = 0, processes = list_processes(all, MOST_BYTES / 2);
    for (int i = 0; i < processes; i++)
        if (parent_of(all[i]) == own)
            found[count++] = all[i];
    return processes < 0 ? -1 : count;
}

int lists_children(void)
{
    char text[MOST_BYTES];
    return read_list(text) >= 0;
}

int list_children(const int **pids)
{
    static char text[MOST_BYTES];
    static int found[MOST_BYTES / 2];
    long length = read_list(text);
    *pids = found;
    return length < 0 ? find_children(found) : parse_numbers(text, length, found);
}
