/* Pid 1 of a container: does inside it what the host asks for, over the container's own standard input and output.
 *
 * It reaps, starts processes and file work, and passes bytes between them and the host, each stream with credit of its
 * own. It never waits for anybody. When the host is gone, which it notices by the end of its input or, where that
 * does not come, by not hearing for longer than its lease, it ends, and everything in the container with it.
 *
 * Code inside runs with the same rights. It cannot signal pid 1, nor trace it or open its memory (it is not dumpable); and if
 * it could, it would only reach what speaks to the host about its own sandbox, and the host believes nothing of that. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>

#include "start.h"
#include "steward.h"
#include "supervision.h"

#define MOST_WATCHED (2 + ATOLL_MAX_OBJECTS * 6)
/* How often the lease is looked at. */
#define PAUSE_SECONDS 5

enum role { FAILURES, REPORTS, INPUT, OUTPUT };

static struct pollfd watched[MOST_WATCHED];
static struct watch {
    struct object *object;
    uint64_t serial;
    enum role role;
    int channel;
} watches[MOST_WATCHED];
static int count;
static long lease, last_heard;

static uint32_t number_at(const char *data, uint32_t length, uint32_t index)
{
    uint32_t number = 0;
    if (length >= (index + 1) * sizeof number)
        copy_bytes((char *)&number, data + index * sizeof number, sizeof number);
    return number;
}

static void release(struct object *object)
{
    object->is_released = 1;
    if (object->kind == PROCESS && !object->is_ended)
        kill_process(object);
    if (object->kind == NO_OBJECT)
        return; /* that was all of it */
    if (!has_input_left(object))
        close_inlet(&object->in);
    if (object->kind != PROCESS)
        for (int i = 0; i < 3; i++)
            close_outlet(&object->out[i]);
    forget_if_over(object);
}

static void give_credit(struct object *object, int channel, uint32_t bytes)
{
    if (channel >= CHANNEL_OUTPUT && channel <= CHANNEL_TALK)
        object->out[channel - 1].credit += bytes;
}

static void obey_about(struct object *object, const struct frame_head *head, char *data)
{
    switch (head->kind) {
    case ORDER_DATA:
        take_input(object, data, head->length);
        break;
    case ORDER_END:
        end_input(object);
        break;
    case ORDER_CREDIT:
        give_credit(object, head->channel, number_at(data, head->length, 0));
        break;
    case ORDER_SIGNAL:
        order_supervisor(object, SUPERVISOR_OP_SIGNAL, (int)number_at(data, head->length, 0));
        break;
    case ORDER_KILL:
        kill_process(object);
        break;
    case ORDER_RESIZE:
        resize_terminal(object, (int)number_at(data, head->length, 0), (int)number_at(data, head->length, 1));
        break;
    case ORDER_RELEASE:
        release(object);
        break;
    }
}

void obey(const struct frame_head *head, char *data)
{
    struct object *object;
    switch (head->kind) {
    case ORDER_PING:
        break;
    case ORDER_START:
        start_process(head->object, head->channel, data, head->length);
        break;
    case ORDER_START_FILES:
        start_file_work(head->object, data, head->length);
        break;
    case ORDER_DIAL:
        dial(head->object, (uint16_t)number_at(data, head->length, 0));
        break;
    case ORDER_LISTEN:
        listen_on(head->object, (uint16_t)number_at(data, head->length, 0), number_at(data, head->length, 1));
        break;
    case ORDER_KILL_ALL:
        kill_all();
        break;
    case ORDER_WAKE:
        wake_supervisors();
        break;
    default:
        if ((object = find_object(head->object)))
            obey_about(object, head, data);
    }
}

static void watch(struct object *object, enum role role, int channel, int fd, int events)
{
    if (fd < 0 || count == MOST_WATCHED)
        return;
    watched[count] = (struct pollfd){.fd = fd, .events = (short)events};
    watches[count++] = (struct watch){.object = object, .serial = object ? object->serial : 0, .role = role, .channel = channel};
}

static void watch_object(struct object *object)
{
    watch(object, FAILURES, 0, object->failures, POLLIN);
    watch(object, REPORTS, 0, object->control, POLLIN);
    if (object->kind == LISTENER)
        watch(object, INPUT, 0, object->in.fd, POLLIN);
    else /* even with nothing to write: that nobody reads it any more is worth knowing */
        watch(object, INPUT, 0, object->in.fd, object->kind == DIALLING || object->in.length ? POLLOUT : 0);
    for (int channel = 1; channel <= 3; channel++)
        if (has_room() && (object->out[channel - 1].credit || object->is_released) && !has_to_wait(object, channel))
            watch(object, OUTPUT, channel, object->out[channel - 1].fd, POLLIN);
}

/* What is watched was there when the turn began; it may be gone, or be another, by the time it comes to it. */
static int still_there(const struct watch *each, int fd)
{
    const struct object *object = each->object;
    if (object->serial != each->serial)
        return 0; /* what was seen was another's */
    switch (each->role) {
    case FAILURES:
        return object->failures == fd;
    case REPORTS:
        return object->control == fd;
    case INPUT:
        return object->in.fd == fd;
    default:
        return object->out[each->channel - 1].fd == fd && has_room();
    }
}

static void serve(const struct watch *each, int events)
{
    struct object *object = each->object;
    if (each->role == FAILURES)
        read_failure(object);
    else if (each->role == REPORTS)
        read_report(object);
    else if (each->role == OUTPUT && each->channel == CHANNEL_TALK)
        read_words(object);
    else if (each->role == OUTPUT)
        read_output(object, each->channel);
    else if (object->kind == LISTENER)
        accept_one(object);
    else if (object->kind == DIALLING)
        finish_dialling(object);
    else if (object->in.length)
        write_input(object);
    else if (events & (POLLERR | POLLHUP))
        note_unread(object);
}

static void check_lease(void)
{
    static long looked;
    long now = seconds();
    if (now - looked > 2 * PAUSE_SECONDS)
        last_heard = now; /* it was stopped meanwhile, and could hear nobody */
    looked = now;
    if (lease && now - last_heard > lease)
        leave(0);
}

/* Words that wait are more urgent than new orders, whose answers would have no room. */
static void turn(int children)
{
    const struct timespec pause = {.tv_sec = PAUSE_SECONDS};
    count = 0;
    watch(0, INPUT, 0, has_room() ? link_in() : -1, POLLIN);
    int orders = count - 1;
    watch(0, OUTPUT, 0, has_words_left() ? link_out() : -1, POLLOUT);
    watch(0, REPORTS, 0, children, POLLIN);
    int first = count;
    for (struct object *each = 0; (each = next_object(each));)
        watch_object(each);
    long ready = sys(SYS_ppoll, watched, count, lease ? &pause : 0, 0, 0);
    if (orders >= 0 && ready > 0 && watched[orders].revents) {
        last_heard = seconds();
        hear();
    }
    for (int i = first; ready > 0 && i < count; i++)
        if (watched[i].revents && still_there(&watches[i], watched[i].fd))
            serve(&watches[i], watched[i].revents);
    for (struct object *each = 0; (each = next_object(each));)
        if (each->is_weak && each->is_ended)
            finish_terminal(each);
    forget_notices(children);
    reap();
    flush_link();
    check_lease();
}

static uint64_t parse_number(const char *text)
{
    uint64_t number = 0;
    while (*text >= '0' && *text <= '9')
        number = number * 10 + (uint64_t)(*text++ - '0');
    return number;
}

static void block_signals(void)
{
    uint64_t all = ~0ULL;
    sys(SYS_rt_sigprocmask, SIG_BLOCK, &all, 0, sizeof all);
}

/* Started with the descriptors that each process may have, and its lease in seconds, or 0 for none. */
_Noreturn void start_program(const long *start)
{
    block_signals();
    sys(SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
    open_link();
    if (start[0] > 1)
        set_open_files(parse_number((const char *)start[2]));
    if (start[0] > 2)
        lease = (long)parse_number((const char *)start[3]);
    last_heard = seconds();
    int children = watch_children();
    say_hello();
    for (;;)
        turn(children);
}
