/* The host's end of a copied tree, as a process of its own: what it hears comes from inside a sandbox.
 * Started as "copier send" or "copier receive". Descriptors: 0 the directory, 1 the pipe, 2 memory with limits, where
 * the report goes, too. */
#include <signal.h>
#include <unistd.h>

#include "trees.h"

enum { FOLDER, PIPE, WORK };

int main(int count, char **arguments)
{
    static struct tree_work work;
    if (count != 2 || pread(WORK, &work, sizeof work, 0) != sizeof work)
        return 1;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    if (arguments[1][0] == 's')
        send_tree(FOLDER, PIPE, 0, &work.limits, &work.report);
    else
        receive_tree(FOLDER, PIPE, 0, &work.limits, &work.report);
    return pwrite(WORK, &work, sizeof work, 0) != sizeof work;
}
