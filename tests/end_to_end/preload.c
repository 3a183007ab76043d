/* Loaded into a node under test: moves its wall clock, and makes its disk fail, as a shared page says. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct page {
    int64_t clock_seconds; /* added to the wall clock */
    int64_t fail_one_in;   /* of so many writes one fails; 0: none does */
    int64_t failed;        /* how many have */
};

static struct page nothing;
static struct page *page = &nothing;
static const char *folder;

__attribute__((constructor)) static void open_page(void)
{
    const char *path = getenv("FAULTS_PAGE");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *found = mmap(NULL, sizeof nothing, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED)
        page = found;
    folder = getenv("FAULTS_FOLDER");
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int clock_gettime(clockid_t which, struct timespec *at)
{
    static __typeof__(&clock_gettime) real;
    if (!real)
        real = REAL(clock_gettime);
    int outcome = real(which, at);
    if (!outcome && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        at->tv_sec += page->clock_seconds;
    return outcome;
}

time_t time(time_t *out)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (out)
        *out = at.tv_sec;
    return at.tv_sec;
}

int gettimeofday(struct timeval *at, void *zone)
{
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

/* Whether the next write to a file fails; only those in the folder do. */
static int fails(int file)
{
    if (!page->fail_one_in || !folder || random() % page->fail_one_in)
        return 0;
    char link[64], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0 || (size_t)length < strlen(folder) || strncmp(path, folder, strlen(folder)))
        return 0;
    __atomic_add_fetch(&page->failed, 1, __ATOMIC_RELAXED);
    errno = EIO;
    return 1;
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at)
{
    return fails(file) ? -1 : REAL(pwrite64)(file, data, size, at);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t at)
{
    return fails(file) ? -1 : REAL(pwrite)(file, data, size, at);
}

ssize_t splice(int from, off64_t *start, int to, off64_t *at, size_t size, unsigned flags)
{
    return fails(to) ? -1 : REAL(splice)(from, start, to, at, size, flags);
}

int fsync(int file)
{
    return fails(file) ? -1 : REAL(fsync)(file);
}

int fdatasync(int file)
{
    return fails(file) ? -1 : REAL(fdatasync)(file);
}
