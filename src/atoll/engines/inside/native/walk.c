/* Opens a path beneath a directory one component after the other, for kernels without openat2, such as gVisor's.
 *
 * Links are followed as far as they stay beneath. Whoever renames directories meanwhile can make it end up where he could
 * go himself, and nowhere else: this runs inside, with his rights. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "files.h"

#define MOST_LINKS 40
#define MOST_DEPTH 256

struct walk {
    char rest[2 * MOST_PATH];
    int folders[MOST_DEPTH + 1], depth, links;
};

/* Takes the first component of the rest; 0 at the end. */
static int take_component(struct walk *walk, char *component)
{
    const char *at = walk->rest;
    size_t length = 0;
    while (*at == '/')
        at++;
    while (at[length] && at[length] != '/') {
        if (length < MOST_PATH - 1)
            component[length] = at[length];
        length++;
    }
    component[length < MOST_PATH ? length : MOST_PATH - 1] = 0;
    at += length;
    put_text(walk->rest, at);
    return length > 0;
}

static int is(const char *text, const char *other)
{
    while (*text && *text == *other) {
        text++;
        other++;
    }
    return *text == *other;
}

/* Puts where a link leads in front of the rest. */
static long follow(struct walk *walk, const char *link)
{
    static char goal[2 * MOST_PATH];
    long length = sys(SYS_readlinkat, walk->folders[walk->depth], link, goal, MOST_PATH - 1);
    if (length < 0)
        return length;
    goal[length] = 0;
    if (goal[0] == '/')
        return -EXDEV;
    if (++walk->links > MOST_LINKS)
        return -ELOOP;
    if (text_length(walk->rest) + (size_t)length + 2 > sizeof goal)
        return -ENAMETOOLONG;
    put_text(put_text(goal + length, "/"), walk->rest);
    put_text(walk->rest, goal);
    return 0;
}

static int only_slashes(const char *text)
{
    while (*text == '/')
        text++;
    return !*text;
}

static long step_up(struct walk *walk)
{
    if (!walk->depth)
        return -EXDEV;
    sys(SYS_close, walk->folders[walk->depth--]);
    return 0;
}

static long step_down(struct walk *walk, const char *component)
{
    if (walk->depth == MOST_DEPTH)
        return -ENAMETOOLONG;
    long fd = sys(SYS_openat, walk->folders[walk->depth], component, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    walk->folders[++walk->depth] = (int)fd;
    return 0;
}

static int is_link(const struct walk *walk, const char *component)
{
    struct files_reply facts;
    return !describe(walk->folders[walk->depth], component, &facts) && S_ISLNK(facts.mode);
}

/* Goes on until the last component is opened with the flags that were asked for. */
static long walk_on(struct walk *walk, uint64_t flags)
{
    static char component[MOST_PATH];
    while (take_component(walk, component)) {
        long outcome = 0;
        if (is(component, "."))
            continue;
        if (is(component, ".."))
            outcome = step_up(walk);
        else if (is_link(walk, component))
            outcome = follow(walk, component);
        else if (only_slashes(walk->rest))
            return sys(SYS_openat, walk->folders[walk->depth], component, flags | O_NOFOLLOW, 0);
        else
            outcome = step_down(walk, component);
        if (outcome)
            return outcome;
    }
    return sys(SYS_openat, walk->folders[walk->depth], ".", flags, 0);
}

long walk_beneath(int root, const char *name, uint64_t flags)
{
    static struct walk walk;
    if (text_length(name) >= MOST_PATH)
        return -ENAMETOOLONG;
    walk = (struct walk){.folders[0] = root};
    put_text(walk.rest, name);
    long fd = name[0] == '/' ? -EXDEV : walk_on(&walk, flags);
    while (walk.depth)
        sys(SYS_close, walk.folders[walk.depth--]);
    return fd;
}
