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

int list_children(const int **pids)
{
    static char text[MOST_BYTES];
    static int found[MOST_BYTES / 2];
    long length = read_list(text);
    int count = 0, pid = 0;
    for (long i = 0; i < length; i++) {
        if (text[i] >= '0' && text[i] <= '9') {
            pid = pid * 10 + text[i] - '0';
        } else if (pid) {
            found[count++] = pid;
            pid = 0;
        }
    }
    *pids = found;
    return length < 0 ? -1 : count;
}
