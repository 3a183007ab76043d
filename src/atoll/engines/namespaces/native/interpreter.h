/* A zygote that is an interpreter, and the kernels that are copies of it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))

/* Serves as `serve_zygote` does. Returns only in kernels: the descriptor of the kernel's channel. */
EXPORTED int serve_interpreter(int control, int filter);

/* What a kernel is going to do first: say `frame`, and write to or read these pairs of addresses. */
EXPORTED void keep_hello(const char *frame, size_t length);
EXPORTED void expect_writes(const uint64_t *ranges, size_t count);
EXPORTED void expect_reads(const uint64_t *ranges, size_t count);

int has_interpreter(void);

/* Both return the copy's pid, 0 in the copy, or -errno. */
long fork_interpreter(void);

/* The copy is a kernel: it goes on where the interpreter began to serve. It is born sealed, as whoever calls this is.
 * Descriptors: its supervisor's control, its channel, its standard streams. */
long fork_kernel(const int *fds);
