/* Ports of the sandbox's own loopback: streams to those who listen there, and listeners for the host. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "steward.h"

#define BACKLOG 128

static uint32_t accepted;

static long open_socket(int family) { return sys(SYS_socket, family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

static long begin_4(uint16_t port, int *fd)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = __builtin_bswap16(port),
                                  .sin_addr.s_addr = __builtin_bswap32(INADDR_LOOPBACK)};
    *fd = (int)open_socket(AF_INET);
    return *fd < 0 ? *fd : sys(SYS_connect, *fd, &address, sizeof address);
}

static long begin_6(uint16_t port, int *fd)
{
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = __builtin_bswap16(port)};
    address.sin6_addr.s6_addr[15] = 1;
    *fd = (int)open_socket(AF_INET6);
    return *fd < 0 ? *fd : sys(SYS_connect, *fd, &address, sizeof address);
}

/* Makes it a stream whose both directions have a descriptor of their own. */
static void become_stream(struct object *object, int fd)
{
    object->kind = STREAM;
    object->in.fd = fd;
    object->out[CHANNEL_TALK - 1].fd = (int)sys(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 3);
}

static void refuse(struct object *object, long error)
{
    say_numbers(object->id, WORD_REFUSED, (int)-error, 0);
    object->is_released = 1;
    forget_if_over(object);
}

/* Some programs listen on ::1 alone. */
static void try_6(struct object *object, long error)
{
    int fd;
    uint16_t port = object->port;
    close_inlet(&object->in);
    if (!port || error != -ECONNREFUSED) {
        refuse(object, error);
        return;
    }
    object->port = 0;
    long outcome = begin_6(port, &fd);
    object->in.fd = fd < 0 ? -1 : fd;
    if (outcome && outcome != -EINPROGRESS) {
        close_inlet(&object->in);
        refuse(object, -ECONNREFUSED);
    }
}

void dial(uint32_t id, uint16_t port)
{
    struct object *object = make_object(id, DIALLING);
    if (!object) {
        say_numbers(id, WORD_REFUSED, EAGAIN, 0);
        return;
    }
    int fd;
    object->port = port;
    long outcome = begin_4(port, &fd);
    object->in.fd = fd < 0 ? -1 : fd;
    if (outcome && outcome != -EINPROGRESS)
        try_6(object, outcome);
}

void finish_dialling(struct object *object)
{
    int error = 0;
    unsigned size = sizeof error;
    long outcome = sys(SYS_getsockopt, object->in.fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (!outcome)
        outcome = -error;
    if (outcome) {
        try_6(object, outcome);
        return;
    }
    become_stream(object, object->in.fd);
    say_numbers(object->id, WORD_CONNECTED, 0, 0);
}

void listen_on(uint32_t id, uint16_t port, uint32_t address)
{
    struct object *object = make_object(id, LISTENER);
    if (!object) {
        say_numbers(id, WORD_REFUSED, EAGAIN, 0);
        return;
    }
    int yes = 1;
    struct sockaddr_in place = {.sin_family = AF_INET,
                                .sin_port = __builtin_bswap16(port),
                                .sin_addr.s_addr = __builtin_bswap32(address)};
    long outcome = object->in.fd = (int)open_socket(AF_INET);
    if (outcome >= 0) {
        sys(SYS_setsockopt, object->in.fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        outcome = sys(SYS_bind, object->in.fd, &place, sizeof place);
    }
    if (!outcome)
        outcome = sys(SYS_listen, object->in.fd, BACKLOG);
    if (outcome) {
        refuse(object, outcome);
        return;
    }
    say_numbers(id, WORD_CONNECTED, 0, 0);
}

void accept_one(struct object *listener)
{
    long fd = sys(SYS_accept4, listener->in.fd, 0, 0, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    struct object *object = make_object(ATOLL_ACCEPTED_BIT | ++accepted, STREAM);
    if (!object) {
        sys(SYS_close, fd);
        return;
    }
    become_stream(object, (int)fd);
    say_numbers(listener->id, WORD_ACCEPTED, (int)object->id, 0);
}
