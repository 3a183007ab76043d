/* The limits of one sandbox, as far as it sets them itself. */
#define _GNU_SOURCE
#include "sandbox_limits.h"

#include <sys/resource.h>

#include "proc_files.h"

/* User namespaces hand out capabilities over fresh kernel objects: most local root exploits need one. */
long forbid_user_namespaces(void) { return write_text("/proc/sys/user/max_user_namespaces", "0"); }

/* What sandboxes have of these counts for the user who makes them, too, up to the host's own limit: one that had
 * them all would leave none to the others. */
long limit_watches(void)
{
    long outcome = write_text("/proc/sys/user/max_inotify_instances", "16");
    if (!outcome)
        outcome = write_text("/proc/sys/user/max_inotify_watches", "8192");
    return outcome == -ENOENT ? 0 : outcome; /* a kernel without them */
}

/* Only the host hands out listeners there, in place of services outside; nothing of the sandbox's has the privilege. */
long allow_low_ports(const struct spawn_request *request)
{
    if (!(request->flags & SPAWN_FLAG_LOW_PORTS))
        return 0;
    return write_text("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
}

static long limit(int resource, uint64_t value)
{
    struct {
        uint64_t soft, hard;
    } limits = {value, value};
    return sys(SYS_prlimit64, 0, resource, &limits, 0);
}

/* On a machine with little memory less than this may be allowed already, and nobody here could raise it. */
static long limit_at_most(int resource, uint64_t most)
{
    struct {
        uint64_t soft, hard;
    } found;
    long outcome = sys(SYS_prlimit64, 0, resource, 0, &found);
    return outcome ? outcome : limit(resource, found.hard < most ? found.hard : most);
}

long set_rlimits(const struct spawn_request *request)
{
    long outcome = limit(RLIMIT_CORE, 0);
    if (!outcome)
        outcome = limit(RLIMIT_NOFILE, request->open_files);
    if (!outcome)
        outcome = limit(RLIMIT_FSIZE, request->file_bytes);
    if (!outcome)
        outcome = limit(RLIMIT_MEMLOCK, 65536);
    if (!outcome)
        outcome = limit_at_most(RLIMIT_MSGQUEUE, 819200);
    if (!outcome)
        outcome = limit_at_most(RLIMIT_SIGPENDING, 4096);
    if (!outcome)
        outcome = limit(RLIMIT_RTPRIO, 0);
    if (!outcome)
        outcome = limit(RLIMIT_NICE, 0);
    if (!outcome && request->processes)
        outcome = limit(RLIMIT_NPROC, request->processes);
    if (!outcome && request->data_bytes)
        outcome = limit(RLIMIT_DATA, request->data_bytes);
    return outcome;
}

/* Writing 0 to `tasks` moves the writer alone, which takes no grace period; a pid in `cgroup.procs` does. */
long enter_cgroups(const int *fds, int count)
{
    for (int i = 0; i < count; i++) {
        long outcome = sys(SYS_write, fds[i], "0", 1);
        if (outcome != 1)
            return outcome < 0 ? outcome : -EIO;
    }
    return 0;
}

long raise_oom_score(const struct spawn_request *request)
{
    return request->flags & SPAWN_FLAG_RAISE_OOM_SCORE ? write_text("/proc/self/oom_score_adj", "300") : 0;
}
