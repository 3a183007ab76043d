/* R as a zygote, and what its copies have to have for themselves. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "r.h"

#define CONTROL 3
#define FILTER 4

/* R begins by making a directory for temporary files, and ends if it cannot; where zygotes live, nothing can be
 * written. It takes one that is there already for its own. */
__attribute__((constructor)) static void lend_temporary_directory(void)
{
    static char nowhere[] = "/tmp";
    if (&R_TempDir && !R_TempDir) {
        R_TempDir = nowhere;
        unsetenv("LD_PRELOAD");
    }
}

static void make_temporary_directory(void)
{
    static char path[] = "/tmp/RtmpXXXXXX";
    if (!mkdtemp(path))
        return; /* whoever wants a temporary file is told */
    R_TempDir = path;
    setenv("R_SESSION_TMPDIR", path, 1);
}

/* Where packages are installed to that a cell asks for; R passes over one that is not there. */
static void make_library(const char *path)
{
    char part[512];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(part, 0755);
        *slash = '/';
    }
    mkdir(part, 0755);
}

/* The names of temporary files come from there. */
static void renew_chance(void)
{
    unsigned seed;
    if (getrandom(&seed, sizeof seed, 0) == sizeof seed)
        srand(seed);
}

/* Returns only in kernels. */
EXPORTED SEXP r_serve_zygote(SEXP library)
{
    int descriptor = serve_interpreter(CONTROL, FILTER);
    begin_channel(descriptor);
    renew_chance();
    make_temporary_directory();
    make_library(R_CHAR(STRING_ELT(library, 0)));
    return R_NilValue;
}
