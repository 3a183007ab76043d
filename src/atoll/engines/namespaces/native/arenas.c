/* Left to itself, an interpreter has its arenas wherever there is room between the libraries that it loads meanwhile:
 * few of them fill a large page, and every copy of the interpreter pays for the many small ones. */
#define _GNU_SOURCE
#include "arenas.h"

#include <stdint.h>
#include <sys/mman.h>

#define ROOM ((size_t)1 << 30)
#define LARGE_PAGE ((uintptr_t)2 << 20)

static char *next;

static void *map(void *at, size_t size, int protection, int flags)
{
    return mmap(at, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

/* Only looked for, not held: what is taken has to count as memory, and what is not, not. Libraries are mapped at the
 * other end of it. */
static char *find_room(void)
{
    char *room = map(0, ROOM, PROT_NONE, MAP_NORESERVE);
    if (room == MAP_FAILED)
        return 0;
    munmap(room, ROOM);
    return (char *)(((uintptr_t)room + LARGE_PAGE - 1) & -LARGE_PAGE);
}

void *take_arena(void *unused, size_t size)
{
    (void)unused;
    if (!next)
        next = find_room();
    void *arena = next ? map(next, size, PROT_READ | PROT_WRITE, MAP_FIXED_NOREPLACE) : MAP_FAILED;
    if (arena == next)
        next += size;
    if (arena == MAP_FAILED)
        arena = map(0, size, PROT_READ | PROT_WRITE, 0);
    return arena == MAP_FAILED ? 0 : arena;
}

void return_arena(void *unused, void *arena, size_t size)
{
    (void)unused;
    if ((char *)arena + size == next)
        next = arena;
    munmap(arena, size);
}
