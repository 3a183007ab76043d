/* The host's end of a copied tree, as a process of its own: what it hears comes from inside a sandbox, so it gives up
 * nearly everything first. Started as "copier send" or "copier receive". Descriptors: 0 the directory, 1 the pipe,
 * 2 memory with limits, where the report goes, too. */
#include <signal.h>

#include "start.h"
#include "trees.h"
#include "walls.h"

enum { FOLDER, PIPE, WORK, DESCRIPTORS };

static struct tree_work work;

static _Noreturn void end(int code)
{
    for (;;)
        sys(SYS_exit_group, code);
}

/* A pipe that nobody reads and a file that grows too large are errors of a call, which are reported. */
static void block_signals(void)
{
    uint64_t mask = 1ULL << (SIGPIPE - 1) | 1ULL << (SIGXFSZ - 1);
    sys(SYS_rt_sigprocmask, SIG_BLOCK, &mask, 0, sizeof mask);
}

static void copy(enum copier_role role)
{
    long outcome = raise_walls(role, FOLDER, DESCRIPTORS);
    if (outcome)
        work.report.error = (int32_t)-outcome;
    else if (role == COPIER_SENDS)
        send_tree(FOLDER, PIPE, 0, &work.limits, &work.report);
    else
        receive_tree(FOLDER, PIPE, 0, &work.limits, &work.report);
}

_Noreturn void start_program(const long *stack)
{
    if (stack[0] != 2 || sys(SYS_pread64, WORK, &work, sizeof work, 0) != sizeof work)
        end(1);
    const char *role = (const char *)stack[2];
    block_signals();
    copy(role[0] == 's' ? COPIER_SENDS : COPIER_RECEIVES);
    end(sys(SYS_pwrite64, WORK, &work, sizeof work, 0) != sizeof work);
}
