/* What the file server's parts share: all paths are resolved beneath the workspace. */
#pragma once

#include "sys.h"
#include "inside_wire.h"

#define MOST_PATH 4200

/* Before all else. */
void enter_workspace(void);

/* Opens a path; links that lead out of the workspace are refused. */
long open_beneath(const char *name, uint64_t flags);

/* The same for kernels that cannot do it at one stroke (walk.c). */
long walk_beneath(int root, const char *name, uint64_t flags);

/* Opens the directory that holds `name`, made if need be; leaves its last component in `leaf`. */
long open_parent(char *name, char **leaf, int make);

/* Tells facts of what `leaf` is in a directory, or of the directory itself; links are not followed. */
long describe(int directory, const char *leaf, struct files_reply *reply);
long describe_path(char *name, struct files_reply *reply);

long remove_path(char *name, int recursive);
long empty_directory(int top);
long rename_path(char *name, char *new_name);

/* Opens a regular file for reading; `reply` has its facts. */
long open_regular(const char *name, struct files_reply *reply, int *fd);

/* Makes `name` and its parents as directories. */
long make_directories(char *name);

/* Cuts a path at its last slash and returns what is behind it, or 0 if there is none. */
char *split(char *name);

/* Copies a text that is not terminated. */
void copy_text(char *to, const char *from, uint32_t length);

long write_all(int fd, const char *data, long length);

/* Makes a file under a name that nobody else has. */
long make_temporary(int parent, char *name);

/* Puts such a file into the place that it was made for, or removes it if `outcome` says that it is not whole. */
long put_in_place(int parent, const char *name, const char *leaf, int fd, long outcome);

/* Makes the entries of a batch in their order; `size` of the reply says how many were made. */
long write_many(struct files_reply *reply, int from);

/* Answers each entry of a batch in `to`, which has a head and `data_bytes` of room for each. */
long read_many(int from, int to);
