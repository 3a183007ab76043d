/* Making sandboxes: what a zygote does. */
#pragma once

/* Serves spawn requests on `control` until it ends; `filter` holds the system-call filter. */
_Noreturn void serve_zygote(int control, int filter);

/* Gives up every capability for good; shared by the jail and by sandboxes. Answer -errno on failure. */
long drop_bounding_set(void);
long clear_ambient_set(void);
long lock_securebits(void);
long drop_capabilities(void);
