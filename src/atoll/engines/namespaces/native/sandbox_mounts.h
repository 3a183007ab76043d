/* The trees of one sandbox. All answer -errno on failure. */
#pragma once

#include "wire.h"

long mount_proc(void);
long mask_proc(void);
long make_proc_sys_read_only(void);
long mount_terminals(void);
long mount_shm(const struct spawn_request *request);
long mount_tmp(const struct spawn_request *request);
long mount_home(const struct spawn_request *request);

/* `fds` are detached mounts, in the order of the request. */
long mount_workspace(const struct spawn_request *request, const int *fds);
long mount_others(const struct spawn_request *request, const int *fds);
