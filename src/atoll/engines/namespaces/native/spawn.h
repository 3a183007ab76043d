/* Making sandboxes: what a zygote does. */
#pragma once

#include "wire.h"

/* Says on `control` whether it could start, then serves spawn requests there until it ends; `filter` holds the
 * system-call filter, `jail` is what the jail was made from. */
_Noreturn void serve_zygote(int control, int filter, const struct keeper_request *jail);

/* The same for an interpreter that has loaded this as a library. Returns only in kernels, which are copies of the
 * interpreter inside a sandbox: the descriptor of the kernel's channel. */
int serve_interpreter(int control, int filter);

/* Gives up every capability for good; shared by the jail and by sandboxes. Answer -errno on failure. */
long drop_bounding_set(void);
long clear_ambient_set(void);
long lock_securebits(void);
long drop_capabilities(void);
