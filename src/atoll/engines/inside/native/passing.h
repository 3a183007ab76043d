/* One message with descriptors over a SOCK_SEQPACKET socket, without a C library. */
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include "sys.h"

#define PASSING_MOST 20

struct passing_room {
    _Alignas(struct cmsghdr) char bytes[CMSG_SPACE(PASSING_MOST * sizeof(int))];
};

/* Receives one message of at most `size` bytes and up to PASSING_MOST descriptors.
 * Returns its length, 0 at the end, -errno on failure. Descriptors arrive close-on-exec. */
static inline long receive_message(int socket, void *data, size_t size, int *fds, int *count)
{
    struct passing_room room;
    struct iovec part = {.iov_base = data, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof room};
    long length = sys(SYS_recvmsg, socket, &message, MSG_CMSG_CLOEXEC);
    *count = 0;
    if (length < 0)
        return length;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
        *count = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        const int *passed = (const int *)CMSG_DATA(header);
        for (int i = 0; i < *count; i++)
            fds[i] = passed[i];
    }
    return length;
}

/* Sends one message with up to PASSING_MOST descriptors. Returns its length or -errno. */
static inline long send_with_fds(int socket, const void *data, size_t size, const int *fds, int count)
{
    struct passing_room room;
    struct iovec part = {.iov_base = (void *)data, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (count > 0) {
        struct cmsghdr *header = (struct cmsghdr *)room.bytes;
        message.msg_control = room.bytes;
        message.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
        for (int i = 0; i < count; i++)
            ((int *)CMSG_DATA(header))[i] = fds[i];
    }
    return sys(SYS_sendmsg, socket, &message, MSG_NOSIGNAL);
}

/* Sends one message and, unless `fd` is -1, one descriptor. Returns its length or -errno. */
static inline long send_message(int socket, const void *data, size_t size, int fd)
{
    return send_with_fds(socket, data, size, &fd, fd >= 0);
}
