/* Descriptors by name, for whoever comes back for them: kept as they are, never read or written.
 *
 * Names have the form group/rest. All of one group hang on one chain, so that forgetting a group does not
 * look at the others. */
#define _GNU_SOURCE
#include "shelf.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "passing.h"

#define CHAINS 4096

struct kept {
    struct kept *next;
    struct kept_entry entry;
    int fds[ATOLL_MAX_KEPT_FDS];
    int count;
};

static struct kept *chains[CHAINS];

static struct kept **chain_of(const char *name)
{
    unsigned hash = 5381;
    for (; *name && *name != '/'; name++)
        hash = hash * 33 + (unsigned char)*name;
    return &chains[hash % CHAINS];
}

static void close_all(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        close(fds[i]);
}

void shelf_forget(const char *name)
{
    size_t length = strlen(name);
    /* With its end, a name is the beginning of itself only. */
    size_t meant = length && name[length - 1] == '/' ? length : length + 1;
    for (struct kept **link = chain_of(name); *link;) {
        struct kept *each = *link;
        if (strncmp(each->entry.name, name, meant)) {
            link = &each->next;
            continue;
        }
        *link = each->next;
        close_all(each->fds, each->count);
        free(each);
    }
}

void shelf_keep(const struct kept_entry *entry, const int *fds, int count)
{
    shelf_forget(entry->name);
    struct kept *fresh = count > ATOLL_MAX_KEPT_FDS ? 0 : malloc(sizeof *fresh);
    if (!fresh) {
        close_all(fds, count);
        return;
    }
    fresh->entry = *entry;
    fresh->count = count;
    memcpy(fresh->fds, fds, (size_t)count * sizeof *fds);
    struct kept **chain = chain_of(entry->name);
    fresh->next = *chain;
    *chain = fresh;
}

long shelf_recall(int socket)
{
    for (int i = 0; i < CHAINS; i++)
        for (struct kept *each = chains[i]; each; each = each->next) {
            long sent = send_with_fds(socket, &each->entry, sizeof each->entry, each->fds, each->count);
            if (sent < 0)
                return sent;
        }
    struct kept_entry end = {.op = KEEPER_OP_RECALL};
    long sent = send_message(socket, &end, sizeof end, -1);
    return sent < 0 ? sent : 0;
}
