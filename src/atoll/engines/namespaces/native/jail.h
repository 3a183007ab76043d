/* The jail that zygotes live in. */
#pragma once

#include "wire.h"

/* Builds the jail around the calling process, which is pid 1 of a new pid namespace, from `count` entries
 * of a plan; then gives up all privileges. Returns -errno, with the step in `failed`. */
long enter_jail(const struct keeper_request *request, const struct plan_entry *plan, int count, int *failed);

/* Serves as the jail's pid 1: starts zygotes on request, reaps, ends with its control socket. */
_Noreturn void serve_jail(int control, const struct keeper_request *request);
