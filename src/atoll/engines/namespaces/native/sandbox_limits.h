/* The limits of one sandbox. All answer -errno on failure. */
#pragma once

#include "wire.h"

long forbid_user_namespaces(void);
long limit_watches(void);
long allow_low_ports(const struct spawn_request *request);
long set_rlimits(const struct spawn_request *request);
long raise_oom_score(const struct spawn_request *request);

/* `fds` are task lists of cgroups. */
long enter_cgroups(const int *fds, int count);
