/* A zygote that is an interpreter: it has loaded this as a library, and its copies inside sandboxes are kernels. */
#define _GNU_SOURCE
#include "interpreter.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "descriptors.h"
#include "passing.h"
#include "seal.h"
#include "sys.h"
#include "zygote.h"

/* The plain zygote has none. */
static pid_t (*fork_quietly)(void);
static void *kernel_context[5];

/* Pages that every kernel writes to, or reads, first; see atoll_guest/hot_pages.py. */
#define MOST_RANGES 1024
struct pages {
    uint64_t start, end;
};
static struct pages writes[MOST_RANGES], reads[MOST_RANGES];
static size_t write_count, read_count;
/* The first that a kernel says. */
static char hello[256];
static size_t hello_length;

#define POPULATE_READ 22
#define POPULATE_WRITE 23

static void populate(const struct pages *ranges, size_t count, int how)
{
    for (size_t i = 0; i < count; i++)
        /* A kernel too old for this answers EINVAL; pages are then faulted in one by one. */
        if (sys(SYS_madvise, ranges[i].start, ranges[i].end - ranges[i].start, how) == -EINVAL)
            return;
}

/* The kernel's own half: a copy of the suspended interpreter, which goes on where it began to serve. */
static _Noreturn void become_kernel(const int *fds)
{
    uint64_t none = 0;
    sys(SYS_setpgid, 0, 0);
    long outcome = 0;
    for (int stream = 0; stream < 3 && outcome >= 0; stream++)
        outcome = sys(SYS_dup3, fds[2 + stream], stream, 0);
    if (outcome >= 0)
        outcome = keep_only(&fds[1], 1);
    if (outcome < 0)
        sys(SYS_exit_group, ATOLL_KERNEL_FAILED);
    sys(SYS_rt_sigprocmask, SIG_SETMASK, &none, 0, sizeof none);
    /* The user's code runs right here: there is nothing to hide, and it may look at itself. */
    sys(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0);
    /* While the host looks at what this process is, it gets ready. */
    send_message(CONTROL_FD, hello, hello_length, -1);
    populate(writes, write_count, POPULATE_WRITE);
    populate(reads, read_count, POPULATE_READ);
    __builtin_longjmp(kernel_context, 1);
}

int has_interpreter(void) { return fork_quietly != 0; }

long fork_interpreter(void)
{
    long pid = fork_quietly();
    return pid < 0 ? -EAGAIN : pid;
}

long fork_kernel(const int *fds)
{
    if (!has_interpreter())
        return -ENOTSUP;
    long pid = fork_interpreter();
    if (pid == 0)
        become_kernel(fds);
    return pid;
}

/* The restartable sequence that this thread's library registered does not survive the kernel's birth. */
static void register_rseq(void)
{
    ptrdiff_t *offset = dlsym(RTLD_DEFAULT, "__rseq_offset");
    unsigned *size = dlsym(RTLD_DEFAULT, "__rseq_size");
    if (offset && size && *size)
        sys(SYS_rseq, (char *)__builtin_thread_pointer() + *offset, 32, 0, 0x53053053);
}

static size_t keep_ranges(struct pages *kept, const uint64_t *ranges, size_t count)
{
    if (count > MOST_RANGES)
        count = MOST_RANGES;
    for (size_t i = 0; i < count; i++)
        kept[i] = (struct pages){ranges[2 * i], ranges[2 * i + 1]};
    return count;
}

void expect_writes(const uint64_t *ranges, size_t count) { write_count = keep_ranges(writes, ranges, count); }
void expect_reads(const uint64_t *ranges, size_t count) { read_count = keep_ranges(reads, ranges, count); }

void keep_hello(const char *frame, size_t length)
{
    hello_length = length < sizeof hello ? length : sizeof hello;
    for (size_t i = 0; i < hello_length; i++)
        hello[i] = frame[i];
}

int serve_interpreter(int control, int filter)
{
    long error = load_filter(filter);
    fork_quietly = (pid_t(*)(void))dlsym(RTLD_DEFAULT, "_Fork");
    if (!error && !fork_quietly)
        error = -ENOSYS;
    say_ready(control, error ? STEP_ZYGOTE_FILTER : STEP_NONE, error);
    if (__builtin_setjmp(kernel_context) == 0)
        serve_spawns(control);
    register_rseq();
    return CONTROL_FD;
}
