/* Frames to and from the host, over what the steward was started with as standard input and output. Both are moved away
 * from there first: nobody else may have them. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>

#include "steward.h"

#define FIRST_FD 10
#define OUTGOING (1u << 20)
/* What has to be said whatever data waits: ends, credits. */
#define RESERVE (256u << 10)

static int in = -1, out = -1;
static char incoming[sizeof(struct frame_head) + ATOLL_MAX_FRAME];
static char outgoing[OUTGOING + RESERVE + sizeof(struct frame_head) + ATOLL_MAX_DATA];
static size_t heard, said, written;

int link_in(void) { return in; }
int link_out(void) { return out; }

static long move(int fd)
{
    long moved = sys(SYS_fcntl, fd, F_DUPFD_CLOEXEC, FIRST_FD);
    if (moved >= 0)
        sys(SYS_fcntl, moved, F_SETFL, sys(SYS_fcntl, moved, F_GETFL, 0) | O_NONBLOCK);
    return moved;
}

/* In the places of the standard streams comes something that yields and takes nothing. */
static void cover_standard_streams(void)
{
    int ends[2];
    long nothing = sys(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR | O_CLOEXEC, 0);
    if (nothing < 0) {
        if (sys(SYS_pipe2, ends, O_CLOEXEC))
            leave(1);
        nothing = ends[0];
        sys(SYS_close, ends[1]);
    }
    for (int fd = 0; fd < 3; fd++)
        sys(SYS_dup3, nothing, fd, 0);
    if (nothing > 2)
        sys(SYS_close, nothing);
}

void open_link(void)
{
    in = (int)move(0);
    out = (int)move(1);
    if (in < 0 || out < 0)
        leave(1);
    cover_standard_streams();
}

void close_link(void) { close_fds((int[]){in, out}, 2); }

int has_words_left(void) { return said > written; }
int has_room(void) { return said < OUTGOING; }
char *room_for_data(void) { return outgoing + said + sizeof(struct frame_head); }

static void put_head(uint32_t object, int word, int channel, uint32_t length)
{
    struct frame_head head = {.length = length, .object = object, .kind = (uint8_t)word, .channel = (uint8_t)channel};
    copy_bytes(outgoing + said, (const char *)&head, sizeof head);
    said += sizeof head + length;
}

void say_data(uint32_t object, int channel, uint32_t length) { put_head(object, WORD_DATA, channel, length); }

void say(uint32_t object, int word, int channel, const void *data, uint32_t length)
{
    /* Only data waits for room. If the rest fills the reserve, the host asks for more than it listens to. */
    if (said + sizeof(struct frame_head) + length > sizeof outgoing)
        leave(1);
    copy_bytes(room_for_data(), data, length);
    put_head(object, word, channel, length);
}

void say_numbers(uint32_t object, int word, int a, int b)
{
    struct numbers numbers = {.a = a, .b = b};
    say(object, word, 0, &numbers, sizeof numbers);
}

void flush_link(void)
{
    while (written < said) {
        long length = sys(SYS_write, out, outgoing + written, said - written);
        if (length == -EAGAIN || length == -EINTR)
            break;
        if (length <= 0)
            leave(0); /* nobody listens any more */
        written += (size_t)length;
    }
    if (written) {
        copy_bytes(outgoing, outgoing + written, said - written);
        said -= written;
        written = 0;
    }
}

/* Has every whole frame done, and keeps the rest. */
static void take_frames(void)
{
    size_t at = 0;
    struct frame_head head;
    while (heard - at >= sizeof head) {
        copy_bytes((char *)&head, incoming + at, sizeof head);
        if (head.length > ATOLL_MAX_FRAME)
            leave(1);
        if (heard - at - sizeof head < head.length)
            break;
        obey(&head, incoming + at + sizeof head);
        at += sizeof head + head.length;
    }
    copy_bytes(incoming, incoming + at, heard - at);
    heard -= at;
}

void hear(void)
{
    long length = sys(SYS_read, in, incoming + heard, sizeof incoming - heard);
    if (length == -EAGAIN || length == -EINTR)
        return;
    if (length <= 0)
        leave(0); /* nobody owns this sandbox any more */
    heard += (size_t)length;
    take_frames();
}
