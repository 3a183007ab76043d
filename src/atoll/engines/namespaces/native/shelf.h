/* Descriptors by name, for whoever comes back for them. */
#pragma once

#include "wire.h"

/* Takes over `count` descriptors under the name that `entry` has, in place of what was there. */
void shelf_keep(const struct kept_entry *entry, const int *fds, int count);

/* Closes what is kept under a name, or under all names that begin with one that ends in a slash. */
void shelf_forget(const char *name);

/* Sends everything, one message each, then an end mark. Returns 0 or -errno. */
long shelf_recall(int socket);
