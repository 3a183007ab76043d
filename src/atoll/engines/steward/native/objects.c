/* What the host goes by numbers, and what belongs to each. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "steward.h"

static struct object objects[ATOLL_MAX_OBJECTS];
static uint32_t used; /* all are before this one */

struct object *next_object(struct object *after)
{
    for (struct object *each = after ? after + 1 : objects; each < objects + used; each++)
        if (each->kind != NO_OBJECT)
            return each;
    return 0;
}

/* One that the host has let go of keeps nobody from using its number again. */
struct object *find_object(uint32_t id)
{
    for (struct object *each = 0; (each = next_object(each));)
        if (each->id == id && !each->is_released)
            return each;
    return 0;
}

struct object *find_object_by_pid(int pid)
{
    for (struct object *each = 0; (each = next_object(each));)
        if (each->pid == pid)
            return each;
    return 0;
}

struct object *make_object(uint32_t id, enum object_kind kind)
{
    static uint64_t serial;
    struct object *room = objects;
    while (room < objects + used && room->kind != NO_OBJECT)
        room++;
    if (room == objects + ATOLL_MAX_OBJECTS)
        return 0;
    if (room == objects + used)
        used++;
    *room = (struct object){.id = id, .serial = ++serial, .kind = kind, .control = -1, .failures = -1, .in.fd = -1};
    for (int i = 0; i < 3; i++)
        room->out[i].fd = -1;
    return room;
}

void close_outlet(struct outlet *outlet)
{
    if (outlet->fd >= 0)
        sys(SYS_close, outlet->fd);
    outlet->fd = -1;
}

void close_inlet(struct inlet *inlet)
{
    if (inlet->fd >= 0)
        sys(SYS_close, inlet->fd);
    if (inlet->held)
        sys(SYS_munmap, inlet->held, ATOLL_INPUT_CREDIT);
    inlet->fd = -1;
    inlet->held = 0;
    inlet->length = 0;
}

static int has_outputs(const struct object *object)
{
    return object->out[0].fd >= 0 || object->out[1].fd >= 0 || object->out[2].fd >= 0;
}

int has_input_left(const struct object *object)
{
    return object->kind == STREAM && object->in.has_ended && object->in.length;
}

/* The host has let go of it, and nothing of it is left but perhaps what prints in the background. */
void forget_if_over(struct object *object)
{
    if (!object->is_released || object->pid || has_outputs(object) || has_input_left(object))
        return;
    close_inlet(&object->in);
    if (object->control >= 0)
        sys(SYS_close, object->control);
    if (object->failures >= 0)
        sys(SYS_close, object->failures);
    object->kind = NO_OBJECT;
}

void close_objects(void)
{
    for (struct object *each = 0; (each = next_object(each));) {
        close_fds((int[]){each->in.fd, each->control, each->failures}, 3);
        close_fds((int[]){each->out[0].fd, each->out[1].fd, each->out[2].fd}, 3);
    }
}
