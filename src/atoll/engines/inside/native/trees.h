/* A tree of files as a stream of records: one side reads a directory, the other makes what it hears of below
 * another one. The same code runs inside a sandbox and, as `copier`, on the host; neither side trusts the other. */
#pragma once

#include "sys.h"
#include "inside_wire.h"

/* The only ways in which trees are opened; the copier's filter lets through no others. */
#define TREE_OPEN_FILE (O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)
#define TREE_OPEN_DIRECTORY (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define TREE_MAKE_FILE (O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC)

/* Writes what lies below `folder` to the pipe; what is no file and no directory is told as left out, and with
 * `skip_closed` also what may not be read. */
void send_tree(int folder, int pipe, int skip_closed, const struct tree_bounds *limits, struct tree_report *report);

/* Makes below `folder` what the pipe tells. With `replace`, a file takes the place of what is there, as a whole;
 * without, a file that is there is an error. */
void receive_tree(int folder, int pipe, int replace, const struct tree_bounds *limits, struct tree_report *report);

/* Gives a file in the making a name that nobody else has. */
char *temporary_name(char *name);
