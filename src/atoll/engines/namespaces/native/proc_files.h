/* Short files of the kernel's, written at once. */
#pragma once

#include <errno.h>
#include <fcntl.h>

#include "sys.h"

/* Answers -errno on failure. */
static inline long write_text(const char *path, const char *text)
{
    long fd = sys(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    long length = text_length(text);
    long written = sys(SYS_write, fd, text, length);
    sys(SYS_close, fd);
    return written == length ? 0 : written < 0 ? written : -EIO;
}
