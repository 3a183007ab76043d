/* The R kernel's end of its channel to the host: messages out, numbered and kept; messages in.
 *
 * The same as atoll_guest/channel.py, for an interpreter that has no sockets to speak of. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "r.h"

#define HEADER_BYTES 4
#define MOST_FRAME_BYTES (8 << 20)
/* What may wait for the host's word that it took note. */
#define MOST_KEPT_BYTES (32 << 20)
#define POLL_MILLISECONDS 100
#define FAILED 70

struct kept {
    struct kept *next;
    long seq;
    size_t length;
    char frame[];
};

static const int places[] = {200, 24};
static int channel = -1;
static pid_t owner;
static char request[80];
static long seq;
static int acks;
static struct kept *oldest, **newest = &oldest;
static size_t kept_bytes;
static struct text frame, unsent, arrived;

static _Noreturn void end_kernel(const char *reason)
{
    if (*reason)
        dprintf(2, "the kernel cannot go on: %s\n", reason);
    _exit(*reason ? FAILED : 0);
}

/* A copy that a cell made of its kernel has no part in the protocol. */
static int is_copy(void) { return getpid() != owner; }

static void write_channel(const char *bytes, size_t length)
{
    while (length) {
        ssize_t written = send(channel, bytes, length, MSG_NOSIGNAL);
        if (written < 0 && errno == ENOTSOCK)
            written = write(channel, bytes, length);
        if (written < 0 && errno != EINTR)
            end_kernel(errno == EPIPE ? "" : strerror(errno));
        if (written > 0) {
            bytes += written;
            length -= (size_t)written;
        }
    }
}

static void forget_oldest(void)
{
    struct kept *first = oldest;
    kept_bytes -= first->length;
    oldest = first->next;
    if (!oldest)
        newest = &oldest;
    free(first);
}

static void forget_all(void)
{
    while (oldest)
        forget_oldest();
    unsent.length = arrived.length = 0;
    seq = acks = 0;
    *request = 0;
}

void begin_channel(int descriptor)
{
    forget_all();
    owner = getpid();
    channel = descriptor;
    /* Out of the way of what cells open, and of what programs get that they start. */
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (dup3(descriptor, places[i], O_CLOEXEC) == places[i]) {
            channel = places[i];
            close(descriptor);
            return;
        }
}

static void begin_frame(void)
{
    frame.length = 0;
    put_bytes(&frame, "\0\0\0\0", HEADER_BYTES);
}

static void end_frame(void)
{
    uint32_t length = (uint32_t)(frame.length - HEADER_BYTES);
    for (int i = 0; i < HEADER_BYTES; i++)
        frame.start[i] = (char)(length >> 8 * i);
}

/* Ends the frame of an object that is still open, as an answer to the request. */
static void end_answer(void)
{
    char fields[160];
    int length = snprintf(fields, sizeof fields, ",\"id\":\"%s\",\"seq\":%ld}", request, seq + 1);
    put_bytes(&frame, fields, (size_t)length);
    end_frame();
}

static void keep_frame(void)
{
    struct kept *kept = malloc(sizeof *kept + frame.length);
    if (!kept)
        end_kernel("there is no memory for a message");
    *kept = (struct kept){.seq = seq, .length = frame.length};
    memcpy(kept->frame, frame.start, frame.length);
    *newest = kept;
    newest = &kept->next;
    kept_bytes += frame.length;
    while (kept_bytes > MOST_KEPT_BYTES && !acks)
        forget_oldest();
}

static SEXP field(SEXP message, const char *name)
{
    SEXP names = Rf_getAttrib(message, R_NamesSymbol);
    for (ptrdiff_t i = 0; i < Rf_xlength(message) && names != R_NilValue; i++)
        if (!strcmp(R_CHAR(STRING_ELT(names, i)), name))
            return VECTOR_ELT(message, i);
    return R_NilValue;
}

static int is_text(SEXP message, const char *name, const char *text)
{
    SEXP value = field(message, name);
    return TYPEOF(value) == STRINGS && !strcmp(R_CHAR(STRING_ELT(value, 0)), text);
}

static int is_true(SEXP message, const char *name)
{
    SEXP value = field(message, name);
    return TYPEOF(value) == LOGICALS && LOGICAL(value)[0] == 1;
}

/* Forgets what the host has; any message may tell. */
static void take_note(SEXP message)
{
    SEXP seen = field(message, "seq");
    if (TYPEOF(seen) != REALS)
        seen = field(message, "ack");
    if (TYPEOF(seen) == REALS)
        while (oldest && (double)oldest->seq <= REAL(seen)[0])
            forget_oldest();
    if (is_text(message, "type", "resume"))
        for (struct kept *kept = oldest; kept; kept = kept->next)
            write_channel(kept->frame, kept->length);
}

static size_t frame_length(void)
{
    const unsigned char *start = (const unsigned char *)arrived.start;
    size_t length = 0;
    for (int i = 0; i < HEADER_BYTES; i++)
        length |= (size_t)start[i] << 8 * i;
    return length;
}

static int has_frame(void)
{
    if (arrived.length < HEADER_BYTES)
        return 0;
    size_t length = frame_length();
    if (!length || length > MOST_FRAME_BYTES)
        end_kernel("the host sent a frame of an impossible length");
    return arrived.length >= HEADER_BYTES + length;
}

/* Returns the next message if all of it has arrived, else NULL. */
static SEXP next_message(void)
{
    if (!has_frame())
        return 0;
    size_t length = frame_length();
    SEXP message = take_json(arrived.start + HEADER_BYTES, length);
    if (!message || TYPEOF(message) != LIST)
        end_kernel("the host sent what is no message");
    arrived.length -= HEADER_BYTES + length;
    memmove(arrived.start, arrived.start + HEADER_BYTES + length, arrived.length);
    Rf_protect(message);
    take_note(message);
    Rf_unprotect(1);
    return message;
}

static void read_some(void)
{
    char bytes[1 << 16];
    ssize_t length = recv(channel, bytes, sizeof bytes, 0);
    if (length > 0)
        put_bytes(&arrived, bytes, (size_t)length);
    else if (length == 0)
        end_kernel("");
    else if (errno != EINTR)
        end_kernel(strerror(errno));
}

static SEXP next_request(void)
{
    SEXP message = next_message();
    int is_for_us = message && !is_text(message, "type", "ack") && !is_text(message, "type", "resume");
    return is_for_us ? message : 0;
}

/* Waits in the midst of a cell, which Ctrl-C may end. */
static void await_more(void)
{
    struct pollfd waiting = {.fd = channel, .events = POLLIN};
    while (poll(&waiting, 1, POLL_MILLISECONDS) <= 0)
        R_CheckUserInterrupt();
    read_some();
}

EXPORTED SEXP r_receive(void)
{
    SEXP message = 0;
    fflush(stdout);
    while (!message) {
        if (!has_frame())
            read_some();
        message = next_request();
    }
    /* One that came when no cell ran must not reach the next. */
    R_interrupts_pending = 0;
    be_interactive();
    if (is_text(message, "type", "welcome"))
        acks = is_true(message, "acks");
    SEXP id = field(message, "id");
    if (TYPEOF(id) == STRINGS)
        snprintf(request, sizeof request, "%s", R_CHAR(STRING_ELT(id, 0)));
    return message;
}

/* Sends a message in answer to the request, or has it sent with the next; returns false for one that is too long.
 * One that is placed is marked in the output, where it belongs. */
EXPORTED SEXP r_send(SEXP message, SEXP is_placed, SEXP is_put_off)
{
    char mark[120];
    if (is_copy())
        Rf_error("this is a forked copy of the kernel, which cannot display; it can print");
    if (!*request)
        return Rf_ScalarLogical(1);
    begin_frame();
    put_json(&frame, message);
    frame.length--; /* the object's end */
    end_answer();
    if (frame.length - HEADER_BYTES > MOST_FRAME_BYTES)
        return Rf_ScalarLogical(0);
    seq++;
    keep_frame();
    fflush(stdout);
    if (LOGICAL(is_placed)[0]) {
        int length = snprintf(mark, sizeof mark, "\x1e%s:%ld\x1f", request, seq);
        write_out(mark, (size_t)length);
    }
    put_bytes(&unsent, frame.start, frame.length);
    if (LOGICAL(is_put_off)[0])
        return Rf_ScalarLogical(1);
    write_channel(unsent.start, unsent.length);
    unsent.length = 0;
    while (LOGICAL(is_placed)[0] && acks && kept_bytes > MOST_KEPT_BYTES) {
        await_more();
        while (next_message())
            continue;
    }
    return Rf_ScalarLogical(1);
}

/* After the last message of a request; a copy that a cell made of its kernel ends with the cell. */
EXPORTED SEXP r_end_request(void)
{
    *request = 0;
    return R_NilValue;
}

EXPORTED SEXP r_end_kernel(SEXP reason) { end_kernel(R_CHAR(STRING_ELT(reason, 0))); }

EXPORTED SEXP r_end_copy(void)
{
    if (is_copy()) {
        dprintf(2, "a forked copy of the kernel came to the end of its cell and ends\n");
        fflush(stdout);
        _exit(0);
    }
    return R_NilValue;
}

static void ask_host(const char *prompt)
{
    static const char question[] = "{\"type\":\"input_request\",\"password\":false,\"prompt\":";
    begin_frame();
    put_bytes(&frame, question, sizeof question - 1);
    put_json(&frame, Rf_protect(Rf_ScalarString(Rf_mkCharLenCE(prompt, (int)strlen(prompt), AS_UTF8))));
    Rf_unprotect(1);
    end_answer();
    seq++;
    keep_frame();
    write_channel(unsent.start, unsent.length);
    unsent.length = 0;
    write_channel(frame.start, frame.length);
}

int ask_for_line(const char *prompt, char *line, int room)
{
    if (is_copy() || !*request)
        return -1;
    fflush(stdout);
    ask_host(prompt);
    for (;;) {
        SEXP message = next_message();
        if (!message) {
            await_more();
            continue;
        }
        if (!is_text(message, "type", "input") || !is_text(message, "id", request))
            continue;
        SEXP text = field(message, "text");
        if (is_true(message, "eof") || TYPEOF(text) != STRINGS)
            return -1;
        return snprintf(line, (size_t)room, "%s", R_CHAR(STRING_ELT(text, 0)));
    }
}

/* What a kernel says first: at once, or in each copy of this process. */
EXPORTED SEXP r_say_hello(SEXP hello)
{
    begin_frame();
    put_json(&frame, hello);
    end_frame();
    if (channel >= 0)
        write_channel(frame.start, frame.length);
    else
        keep_hello(frame.start, frame.length);
    return R_NilValue;
}

/* Speaks to nobody, for a rehearsal, or no more. */
EXPORTED SEXP r_rehearse(SEXP is_beginning)
{
    forget_all();
    if (LOGICAL(is_beginning)[0]) {
        owner = getpid();
        channel = open("/dev/null", O_RDWR | O_CLOEXEC);
        snprintf(request, sizeof request, "rehearsal");
    } else {
        close(channel);
        channel = -1;
    }
    return R_NilValue;
}

/* Takes the channel that a program finds as its standard input, which is empty from then on. */
EXPORTED SEXP r_take_channel(void)
{
    int descriptor = fcntl(0, F_DUPFD_CLOEXEC, 3), nothing = open("/dev/null", O_RDONLY);
    if (descriptor < 0 || nothing < 0 || dup2(nothing, 0) < 0)
        end_kernel(strerror(errno));
    close(nothing);
    begin_channel(descriptor);
    return R_NilValue;
}
