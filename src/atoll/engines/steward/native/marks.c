/* Whose a process is, on kernels where orphans come to pid 1 whoever wants them, as gVisor's do.
 *
 * Everything that a command starts inherits its hard limits, and limits can only be lowered. So a command gets two that
 * nothing enforces, one as high as the other is low: whoever lowers his own makes himself look like more commands than
 * one, and is killed with any of them; nobody can look like none. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/resource.h>

#include "steward.h"

#define HIGHEST (1ULL << 60)
#define MOST_PROCESSES 65536

static int marking;
static uint64_t last;

int uses_marks(void) { return marking > 0; }
uint64_t new_mark(void) { return ++last; }

static long look(int pid, int resource, uint64_t *hard)
{
    uint64_t limits[2];
    long outcome = sys(SYS_prlimit64, pid, resource, 0, limits);
    *hard = limits[1];
    return outcome;
}

int find_out_whether_to_mark(void)
{
    uint64_t memory, locked;
    if (lists_children())
        return marking = 0;
    if (look(0, RLIMIT_RSS, &memory) || look(0, RLIMIT_MEMLOCK, &locked))
        return marking = -1;
    return marking = memory >= HIGHEST && locked >= HIGHEST ? 1 : -1;
}

long put_mark(uint64_t mark)
{
    uint64_t low[2] = {mark, mark}, high[2] = {HIGHEST - mark, HIGHEST - mark};
    long outcome = sys(SYS_prlimit64, 0, RLIMIT_RSS, low, 0);
    return outcome ? outcome : sys(SYS_prlimit64, 0, RLIMIT_MEMLOCK, high, 0);
}

static int has_mark(int pid, uint64_t mark)
{
    uint64_t low, high;
    if (look(pid, RLIMIT_RSS, &low) || look(pid, RLIMIT_MEMLOCK, &high))
        return 0;
    return low <= mark && high <= HIGHEST && mark <= HIGHEST - high;
}

int kill_marked(uint64_t mark)
{
    static int pids[MOST_PROCESSES];
    int found = 0, count = list_processes(pids, MOST_PROCESSES);
    for (int i = 0; i < count; i++)
        if (pids[i] > 1 && has_mark(pids[i], mark)) {
            found++;
            sys(SYS_kill, pids[i], SIGKILL);
        }
    return found;
}
