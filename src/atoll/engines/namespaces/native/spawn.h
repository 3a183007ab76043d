/* Making one sandbox, or a kernel in one that exists. */
#pragma once

#include "wire.h"

/* Returns when the child has become init, or names the step that failed. Descriptors are as the request says. */
struct step_reply spawn(const struct spawn_request *request, const int *fds, int count);
