/* In place of trees.c: a copier that a stream has taken over. It makes the one system call that it reads from its pipe
 * and reports the answer. */
#include "trees.h"

#define THE_TEXT (-1000L) /* stands for the address of the text */

struct call {
    long number, arguments[6];
    char text[256];
};

static void obey(int pipe, struct tree_report *report)
{
    static struct call call;
    sys(SYS_read, pipe, &call, sizeof call);
    for (int i = 0; i < 6; i++)
        if (call.arguments[i] == THE_TEXT)
            call.arguments[i] = (long)call.text;
    const long *a = call.arguments;
    long answer = sys6(call.number, a[0], a[1], a[2], a[3], a[4], a[5]);
    report->error = answer < 0 ? (int32_t)-answer : 0;
}

void send_tree(int folder, int pipe, int skip_closed, const struct tree_bounds *limits, struct tree_report *report)
{
    (void)folder, (void)skip_closed, (void)limits;
    obey(pipe, report);
}

void receive_tree(int folder, int pipe, int replace, const struct tree_bounds *limits, struct tree_report *report)
{
    (void)folder, (void)replace, (void)limits;
    obey(pipe, report);
}
