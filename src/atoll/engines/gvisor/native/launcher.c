/* Starts a program inside a cgroup, bound to the life of whoever starts it.
 *
 *     launcher PARENT SEPARATE ENTRIES PROGRAM ARGUMENT...
 *
 * PARENT is the pid of the engine's process, ENTRIES the descriptors by which the cgroup is entered, separated by commas: task
 * lists (version 1), or the one directory (version 2). With SEPARATE = 1 the program gets a network of its own: runsc
 * listens for orders on a socket without a path, which everybody in the same network could open. All this happens before the
 * program's first instruction, so that nothing of it ever runs outside. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

static void fail(const char *what)
{
    fprintf(stderr, "launcher: %s: %s\n", what, strerror(errno));
    _exit(126);
}

static void enter(int fd)
{
    struct stat facts;
    if (fstat(fd, &facts))
        fail("cgroup");
    int list = S_ISDIR(facts.st_mode) ? openat(fd, "cgroup.procs", O_WRONLY | O_CLOEXEC) : fd;
    if (list < 0 || write(list, "0", 1) != 1)
        fail("cgroup");
    if (list != fd)
        close(list);
    close(fd);
}

static void enter_all(char *entries)
{
    for (char *each = strtok(entries, ","); each; each = strtok(0, ","))
        enter(atoi(each));
}

int main(int count, char **arguments)
{
    if (count < 5) {
        errno = EINVAL;
        fail("arguments");
    }
    if (prctl(PR_SET_PDEATHSIG, SIGKILL))
        fail("parent");
    /* It may have died before that. */
    if (getppid() != atoi(arguments[1]))
        _exit(126);
    enter_all(arguments[3]);
    if (atoi(arguments[2]) && unshare(CLONE_NEWNET))
        fail("network");
    umask(077);
    execv(arguments[4], arguments + 4);
    fail(arguments[4]);
}
