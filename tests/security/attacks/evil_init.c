/* An init that says hello as it should, and then lies to the host in one of several ways. It stands for one that
 * hostile code has taken over: whatever it says, only its own sandbox may suffer.
 *
 * EVIL: 1 keeps everything and says nothing, 2 closes everything, 3 ends, 4 sends noise, 5 sends messages of the right
 * size with anything in them, 6 does so with descriptors of every kind, 7 with far too many of them. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "inside_wire.h"
#include "wire.h"

#define CONTROL 3
#define MOST 20
#define MESSAGES 400

static int offered[5];

static void open_offers(void)
{
    int ends[2];
    offered[0] = open("/etc/passwd", O_RDONLY);
    offered[1] = open("/workspace", O_RDONLY | O_DIRECTORY);
    offered[2] = memfd_create("x", 0);
    if (pipe(ends))
        _exit(1);
    offered[3] = ends[0];
    offered[4] = socket(AF_UNIX, SOCK_STREAM, 0);
}

static void fill(unsigned char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = rand() % 3 ? 0 : (unsigned char)rand();
}

static long send_lie(int to, const void *data, size_t size, int fds)
{
    char room[CMSG_SPACE(MOST * sizeof(int))] = {0};
    struct iovec part = {.iov_base = (void *)data, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fds) {
        message.msg_control = room;
        message.msg_controllen = CMSG_SPACE(fds * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(fds * sizeof(int));
        for (int i = 0; i < fds; i++)
            ((int *)CMSG_DATA(header))[i] = offered[rand() % 5];
    }
    return sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static size_t right_size(uint32_t op)
{
    if (op == INIT_OP_RUN)
        return sizeof(struct supervisor_report);
    return op == INIT_OP_FILES ? sizeof(struct files_reply) : sizeof(struct step_reply);
}

/* Events and errors that mean something come more often than by chance. */
static void lie(const struct init_request *request, int to)
{
    union {
        unsigned char bytes[512];
        struct supervisor_report report;
        struct files_reply files;
        struct step_reply step;
    } message;
    fill(message.bytes, sizeof message);
    size_t size = EVIL == 4 ? (size_t)(rand() % 300) : right_size(request->op);
    if (EVIL > 4 && request->op == INIT_OP_RUN)
        message.report.event = (uint32_t)(rand() % 5);
    if (EVIL > 4 && request->op == INIT_OP_FILES)
        message.files.error = rand() % 2 ? 0 : message.files.error;
    if (EVIL > 4 && (request->op == INIT_OP_CONNECT || request->op == INIT_OP_LISTEN))
        message.step.error = rand() % 2 ? 0 : message.step.error;
    send_lie(to, message.bytes, size, EVIL == 7 ? MOST : EVIL == 6 ? rand() % 3 : 0);
}

static void serve(const struct init_request *request, const int *fds, int count)
{
    char ignored[70000];
    for (int i = 0; i < MESSAGES; i++) {
        struct pollfd asked = {.fd = fds[0], .events = POLLIN};
        if (poll(&asked, 1, i < 8 ? 0 : 50) > 0 && recv(fds[0], ignored, sizeof ignored, MSG_DONTWAIT) == 0)
            break;
        lie(request, fds[0]);
        for (int other = 1; other < count && EVIL == 4; other++)
            (void)!write(fds[other], ignored, (size_t)(rand() % 100));
    }
    _exit(0);
}

static void answer(void)
{
    struct init_request request;
    int fds[MOST], count = 0;
    char room[CMSG_SPACE(MOST * sizeof(int))];
    struct iovec part = {.iov_base = &request, .iov_len = sizeof request};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(CONTROL, &message, MSG_CMSG_CLOEXEC) <= 0)
        _exit(0);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header) {
        count = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(header), count * sizeof(int));
    }
    if (EVIL == 1)
        return;
    if (EVIL == 3)
        _exit(0);
    if (EVIL > 3 && count && fork() == 0) {
        srand((unsigned)getpid());
        serve(&request, fds, count);
    }
    for (int i = 0; i < count; i++)
        close(fds[i]);
}

int main(void)
{
    struct init_hello hello = {.version = ATOLL_VERSION, .probe = ATOLL_PROBE_ERRNO, .io_uring = EPERM};
    struct utsname names;
    hello.securebits = prctl(PR_GET_SECUREBITS, 0, 0, 0, 0);
    hello.landlock = -ENOSYS;
    uname(&names);
    memcpy(hello.hostname, names.nodename, sizeof hello.hostname - 1);
    signal(SIGCHLD, SIG_IGN);
    open_offers();
    send(CONTROL, &hello, sizeof hello, MSG_NOSIGNAL);
    for (;;)
        answer();
}
