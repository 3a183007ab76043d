/* What a zygote does. */
#pragma once

#include "wire.h"

/* Says on `control` whether it could start, then serves spawn requests there until it ends; `filter` holds the
 * system-call filter, `jail` is what the jail was made from. */
_Noreturn void serve_zygote(int control, int filter, const struct keeper_request *jail);

/* Says whether it could start, and ends if not. */
void say_ready(int control, int step, long error);

/* Serves until `control` ends. Returns only in a kernel. */
void serve_spawns(int control);
