/* Bytes in and out of what runs in the sandbox. Nothing here waits. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "steward.h"

void say_credit(struct object *object, uint32_t bytes)
{
    if (!object->is_released)
        say(object->id, WORD_CREDIT, CHANNEL_INPUT, &bytes, sizeof bytes);
}

/* A process may still want to be heard; a socket just gets no more. */
static void finish_input(struct object *object)
{
    sys(SYS_shutdown, object->in.fd, SHUT_WR); /* no socket: no harm */
    close_inlet(&object->in);
}

/* Nobody reads it any more: what is there is of no use, and the host hears that no more is wanted. */
static void refuse_input(struct object *object)
{
    close_inlet(&object->in);
    if (!object->is_released)
        say(object->id, WORD_END, CHANNEL_INPUT, 0, 0);
}

void write_input(struct object *object)
{
    struct inlet *in = &object->in;
    while (in->length) {
        uint32_t part = ATOLL_INPUT_CREDIT - in->start < in->length ? ATOLL_INPUT_CREDIT - in->start : in->length;
        long length = sys(SYS_write, in->fd, in->held + in->start, part);
        if (length == -EAGAIN || length == -EINTR)
            return;
        if (length <= 0) {
            refuse_input(object);
            forget_if_over(object);
            return;
        }
        in->start = (in->start + (uint32_t)length) % ATOLL_INPUT_CREDIT;
        in->length -= (uint32_t)length;
        say_credit(object, (uint32_t)length);
    }
    if (in->has_ended && in->fd >= 0)
        finish_input(object);
    forget_if_over(object);
}

void note_unread(struct object *object)
{
    if (!object->in.has_ended)
        refuse_input(object);
    else
        close_inlet(&object->in);
}

static int hold(struct inlet *in, const char *data, uint32_t length)
{
    if (!in->held) {
        long held = sys(SYS_mmap, 0, ATOLL_INPUT_CREDIT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (held < 0 && held > -4096)
            return 0;
        in->held = (char *)held;
    }
    if (length > ATOLL_INPUT_CREDIT - in->length)
        return 0;
    uint32_t end = (in->start + in->length) % ATOLL_INPUT_CREDIT;
    uint32_t part = ATOLL_INPUT_CREDIT - end < length ? ATOLL_INPUT_CREDIT - end : length;
    copy_bytes(in->held + end, data, part);
    copy_bytes(in->held, data + part, length - part);
    in->length += length;
    return 1;
}

void take_input(struct object *object, char *data, uint32_t length)
{
    if (object->in.fd < 0 || object->in.has_ended)
        return;
    if (object->is_weak)
        length = take_keys(object, data, length);
    if (!hold(&object->in, data, length))
        refuse_input(object);
    else if (object->kind != DIALLING)
        write_input(object);
}

void end_input(struct object *object)
{
    object->in.has_ended = 1;
    if (object->in.fd >= 0 && !object->in.length && object->kind != DIALLING)
        finish_input(object);
}

void end_output(struct object *object, int channel)
{
    close_outlet(&object->out[channel - 1]);
    if (!object->is_released)
        say(object->id, WORD_END, channel, 0, 0);
    forget_if_over(object);
}

static long read_some(struct object *object, int channel, uint64_t most)
{
    struct outlet *outlet = &object->out[channel - 1];
    if (!object->is_released && outlet->credit < most)
        most = outlet->credit;
    long length = sys(SYS_read, outlet->fd, room_for_data(), most);
    if (length == -EAGAIN || length == -EINTR)
        return length;
    if (length <= 0) { /* a terminal that nobody has open any more fails */
        end_output(object, channel);
        return length;
    }
    outlet->total += (uint64_t)length;
    if (!object->is_released) { /* else something in the background goes on printing, to nobody */
        outlet->credit -= (uint64_t)length;
        say_data(object->id, channel, (uint32_t)length);
    }
    return length;
}

long read_output(struct object *object, int channel)
{
    return read_some(object, channel, ATOLL_MAX_DATA);
}

static uint64_t bytes_waiting(const struct outlet *outlet)
{
    int waiting = 0;
    if (outlet->fd >= 0)
        sys(SYS_ioctl, outlet->fd, FIONREAD, &waiting);
    return (uint64_t)(waiting > 0 ? waiting : 0);
}

int has_to_wait(const struct object *object, int channel)
{
    if (channel != CHANNEL_TALK || !object->words)
        return 0;
    for (int i = 0; i < 2; i++)
        if (object->out[i].fd >= 0 && object->out[i].total < object->printed[i])
            return 1;
    return 0;
}

/* The host takes a kernel's words for all that there is to come. No more words than were there are told: what is said
 * meanwhile may come after something that is printed meanwhile. */
void read_words(struct object *object)
{
    struct outlet *talk = &object->out[CHANNEL_TALK - 1];
    if (!object->words) {
        uint64_t waiting = bytes_waiting(talk);
        object->words = (uint32_t)(waiting < ATOLL_MAX_DATA ? waiting : ATOLL_MAX_DATA);
        for (int i = 0; i < 2; i++)
            object->printed[i] = bytes_to_come(&object->out[i]);
    }
    if (has_to_wait(object, CHANNEL_TALK))
        return;
    long length = read_some(object, CHANNEL_TALK, object->words ? object->words : ATOLL_MAX_DATA);
    if (length > 0 && object->words)
        object->words -= (uint32_t)length;
}

uint64_t bytes_to_come(const struct outlet *outlet)
{
    return outlet->total + bytes_waiting(outlet);
}
