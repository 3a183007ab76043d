/* Giving up every privilege for good. All answer -errno on failure. */
#pragma once

#include "wire.h"

/* Shared by the jail and by sandboxes. */
long drop_bounding_set(void);
long clear_ambient_set(void);
long lock_securebits(void);
long drop_capabilities(void);

/* Takes over a descriptor of the filter that all sandboxes get. */
long load_filter(int fd);

/* Whatever runs in a sandbox has gone through this, or descends from something that has. `failed` is where the name of
 * the step is left. */
long seal(const struct spawn_request *request, volatile int *failed);
