/* Exchanges two names as fast as it can, for so many seconds; then tells how often. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    double start = now(), end = start + atof(argv[3]);
    long count = 0, failures = 0;
    while (now() < end)
        for (int i = 0; i < 256; i++, count++)
            failures += syscall(SYS_renameat2, AT_FDCWD, argv[1], AT_FDCWD, argv[2], RENAME_EXCHANGE) != 0;
    printf("\n@@ {\"count\": %ld, \"failures\": %ld, \"seconds\": %f}\n", count, failures, now() - start);
    return 0;
}
