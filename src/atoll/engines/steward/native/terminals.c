/* What the kernel does for terminals elsewhere: keys that are signals, and an end. Only gVisor's need it. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <sys/ioctl.h>

#include "steward.h"
#include "supervision.h"

/* As the kernel has it; the C library's is another. */
struct settings {
    uint32_t input, output, control, local;
    uint8_t line, keys[19];
};

#define SIGNAL_KEYS 1u /* ISIG */
enum key { INTERRUPT = 0, QUIT = 1, SUSPEND = 10 };

static int signal_for(const struct settings *settings, char key)
{
    if (!key)
        return 0; /* what stands for no key */
    if (key == (char)settings->keys[INTERRUPT])
        return SIGINT;
    if (key == (char)settings->keys[QUIT])
        return SIGQUIT;
    return key == (char)settings->keys[SUSPEND] ? SIGTSTP : 0;
}

/* Sends the signals that keys stand for, and takes those keys out; returns how much is left. */
uint32_t take_keys(struct object *object, char *data, uint32_t length)
{
    struct settings settings;
    uint32_t left = 0;
    if (sys(SYS_ioctl, object->in.fd, TCGETS, &settings) || !(settings.local & SIGNAL_KEYS))
        return length;
    for (uint32_t i = 0; i < length; i++) {
        int number = signal_for(&settings, data[i]);
        if (number)
            order_supervisor(object, SUPERVISOR_OP_KEY, number);
        else
            data[left++] = data[i];
    }
    if (left < length)
        say_credit(object, length - left);
    return left;
}

/* Reads what there is after the command's end, and calls that the end. */
void finish_terminal(struct object *object)
{
    while (has_room() && object->out[0].fd >= 0 && (object->out[0].credit || object->is_released))
        if (read_output(object, CHANNEL_OUTPUT) == -EAGAIN) {
            end_output(object, CHANNEL_OUTPUT);
            return;
        }
}
