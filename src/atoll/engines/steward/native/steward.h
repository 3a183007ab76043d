/* The parts of the steward: pid 1 of a container, who does inside it what the host asks for. */
#pragma once

#include <poll.h>

#include "guest.h"
#include "steward_wire.h"

/* What goes in, as far as it could not be written yet. */
struct inlet {
    int fd; /* -1: none, or not any more */
    int has_ended;
    char *held;
    uint32_t start, length;
};

/* What comes out; nobody reads more than there is credit for. */
struct outlet {
    int fd;
    uint64_t credit, total;
};

enum object_kind { NO_OBJECT, PROCESS, FILE_WORK, DIALLING, STREAM, LISTENER };

struct object {
    uint32_t id;
    uint64_t serial; /* of this one alone: numbers, places and descriptors are used again */
    enum object_kind kind;
    int pid;               /* of whom the steward has forked for it: a supervisor or a file worker */
    int control, failures; /* of a supervisor, and where its child tells of a failed start */
    int main_pid;
    int is_started, is_ended, is_released;
    int is_killed;
    int is_weak;  /* its terminal sends no signals and never ends */
    uint64_t mark; /* that all it starts inherits, where nobody else can tell whose they are */
    uint16_t port;
    struct inlet in;
    struct outlet out[3]; /* by channel, from 1 on */
    /* What has to be told before a kernel's next words, all of which it printed before it said them. */
    uint64_t printed[2];
    uint32_t words; /* how many bytes of those there were; 0: it has said nothing more */
};

/* link.c: frames to and from the host. */
void open_link(void);
void close_link(void);
int link_in(void);
int link_out(void);
int has_words_left(void);                       /* that were said and not written yet */
int has_room(void);                             /* for one more frame of data, besides what has to be said anyway */
char *room_for_data(void);                      /* ATOLL_MAX_DATA bytes, for say_data to send without copying */
void say_data(uint32_t object, int channel, uint32_t length);
void say(uint32_t object, int word, int channel, const void *data, uint32_t length);
void say_numbers(uint32_t object, int word, int a, int b);
void flush_link(void);
void hear(void);                                /* takes what there is and has it done by obey() */
void obey(const struct frame_head *head, char *data);

/* objects.c: what the host goes by numbers. */
struct object *find_object(uint32_t id);
struct object *find_object_by_pid(int pid);
struct object *make_object(uint32_t id, enum object_kind kind); /* 0 if there is no room */
struct object *next_object(struct object *after);               /* of all there are; 0 first and at the end */
void close_outlet(struct outlet *outlet);
void close_inlet(struct inlet *inlet);
int has_input_left(const struct object *object); /* of a stream, for whoever inside is slow to read */
void forget_if_over(struct object *object);
void close_objects(void); /* in a child, which has no business with them */

/* streams.c: bytes in and out. */
void say_credit(struct object *object, uint32_t bytes);
void take_input(struct object *object, char *data, uint32_t length);
void end_input(struct object *object);
void write_input(struct object *object);
void note_unread(struct object *object); /* whoever read the input has closed it */
long read_output(struct object *object, int channel); /* of read() */
int has_to_wait(const struct object *object, int channel); /* for what was printed before it was said */
void read_words(struct object *object); /* of a kernel, after what it printed before it said them */
void end_output(struct object *object, int channel);
uint64_t bytes_to_come(const struct outlet *outlet);

/* starts.c: processes. */
void start_process(uint32_t id, int kind, const char *payload, uint32_t length);
void start_file_work(uint32_t id, const char *request, uint32_t length);
void read_failure(struct object *object);
void read_report(struct object *object);
void order_supervisor(struct object *object, int op, int signal);
void kill_process(struct object *object);
void resize_terminal(struct object *object, int rows, int columns);
void reap(void);
void kill_all(void);
void wake_supervisors(void);
void set_open_files(uint64_t most);

/* marks.c: whose a process is, on kernels that do not say. */
int find_out_whether_to_mark(void); /* 0: no need, 1: yes, -1: it would have to, but cannot */
int uses_marks(void);
uint64_t new_mark(void);
long put_mark(uint64_t mark);
int kill_marked(uint64_t mark); /* returns how many there were */

/* terminals.c: what the kernel does for terminals elsewhere. */
uint32_t take_keys(struct object *object, char *data, uint32_t length);
void finish_terminal(struct object *object);

/* sockets.c: ports of the loopback. */
void dial(uint32_t id, uint16_t port);
void finish_dialling(struct object *object);
void listen_on(uint32_t id, uint16_t port, uint32_t address);
void accept_one(struct object *object);

/* file_work.c: one piece of file work, in a process of its own. */
_Noreturn void do_file_work(const char *request, uint32_t length, int in, int out);

/* clearing.c: a container as new, in a process of its own. */
long clear_tree(const char *path, uint32_t mode);

/* hello.c: what can only be seen from inside. */
void say_hello(void);

/* Upwards, so that bytes may move towards the start of what they overlap with. */
static inline void copy_bytes(char *to, const char *from, size_t count)
{
#if defined(__x86_64__)
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
#else
    for (size_t i = 0; i < count; i++)
        to[i] = from[i];
#endif
}
