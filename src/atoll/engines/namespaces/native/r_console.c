/* What R takes for its console: cells print to the process's output, and their input comes from the host. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "r.h"

#define MOST_CAPTURED (4 << 20)

static int is_capturing, is_ready, is_serving;
static size_t captured_bytes;
static struct text captured;
static char line[1 << 16], *rest = line;

void write_out(const char *bytes, size_t length)
{
    while (length) {
        ssize_t written = write(1, bytes, length);
        if (written < 0 && errno != EINTR)
            return; /* a cell closed it */
        if (written > 0) {
            bytes += written;
            length -= (size_t)written;
        }
    }
}

static void write_console(const char *text, int length)
{
    if (!is_capturing) {
        write_out(text, (size_t)length);
        return;
    }
    size_t room = captured_bytes < MOST_CAPTURED ? MOST_CAPTURED - captured_bytes : 0;
    put_bytes(&captured, text, (size_t)length < room ? (size_t)length : room);
    captured_bytes += (size_t)length;
}

/* A line of input for the cell that runs. When none does, R is at its top level: it has just begun, or a cell has asked
 * for it. Then it is told to serve. */
static int read_console(const char *prompt, unsigned char *buffer, int room, int history)
{
    (void)history;
    if (!is_serving && !is_ready)
        return 0; /* its script failed; so R ends */
    if (!is_serving)
        return snprintf((char *)buffer, (size_t)room, ".atoll_serve()\n");
    if (!*rest) {
        int length = ask_for_line(prompt, line, sizeof line - 1);
        if (length < 0)
            return 0;
        if (length > (int)sizeof line - 2)
            length = sizeof line - 2;
        strcpy(line + length, "\n");
        rest = line;
    }
    /* A line may be longer than what there is room for. */
    int length = snprintf((char *)buffer, (size_t)room, "%s", rest);
    rest += length < room ? length : room - 1;
    return 1;
}

static const int crashes[] = {SIGSEGV, SIGILL, SIGBUS};
static struct sigaction of_r[sizeof crashes / sizeof *crashes];

/* R asks people what to do when it crashes; nobody is there. A stack that is full is no crash: R goes on then. */
static void crash(int number, siginfo_t *facts, void *context)
{
    R_Interactive = 0;
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++)
        if (crashes[i] == number)
            of_r[i].sa_sigaction(number, facts, context);
}

static void take_crashes(void)
{
    struct sigaction ours = {.sa_sigaction = crash, .sa_flags = SA_ONSTACK | SA_SIGINFO};
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++)
        if (!sigaction(crashes[i], 0, &of_r[i]) && of_r[i].sa_flags & SA_SIGINFO)
            sigaction(crashes[i], &ours, 0);
}

static void note_interrupt(int number)
{
    (void)number;
    R_interrupts_pending = 1;
}

/* As R does it, but for what waits for a file or a socket: that does not go on waiting. */
static void take_interrupts(void)
{
    struct sigaction ours = {.sa_handler = note_interrupt};
    sigaction(SIGINT, &ours, 0);
}

void be_interactive(void) { R_Interactive = 1; }

EXPORTED SEXP r_take_console(void)
{
    R_Outputfile = 0; /* else R would write there, past the console */
    ptr_R_WriteConsole = write_console;
    ptr_R_ReadConsole = read_console;
    be_interactive();
    take_crashes();
    take_interrupts();
    setvbuf(stdout, 0, _IOLBF, 0);
    return R_NilValue;
}

/* Does what R's own top level does with an expression: around it there is no call that it could see. Returns its value
 * and whether that is visible. */
EXPORTED SEXP r_evaluate(SEXP expression)
{
    SEXP before = R_Srcref;
    R_Srcref = R_NilValue; /* during calls of C it is no value at all, over which R falls when it compiles a loop */
    SEXP value = Rf_protect(Rf_eval(expression, R_GlobalEnv));
    R_Srcref = before;
    SEXP visible = Rf_protect(Rf_ScalarLogical(R_Visible));
    SEXP pair = Rf_PairToVectorList(Rf_protect(Rf_cons(value, Rf_protect(Rf_cons(visible, R_NilValue)))));
    Rf_unprotect(4);
    return pair;
}

/* Sets what R's own top level would set in its base, where R code may not. */
EXPORTED SEXP r_set_in_base(SEXP name, SEXP value)
{
    SET_SYMVALUE(Rf_install(R_CHAR(STRING_ELT(name, 0))), value);
    return R_NilValue;
}

/* From now on R is told to serve. */
EXPORTED SEXP r_note_ready(void)
{
    is_ready = 1;
    return R_NilValue;
}

EXPORTED SEXP r_note_serving(SEXP is_begun)
{
    is_serving = LOGICAL(is_begun)[0];
    is_capturing = 0;
    rest = line + strlen(line);
    return R_NilValue;
}

EXPORTED SEXP r_begin_capture(void)
{
    is_capturing = 1;
    captured.length = captured_bytes = 0;
    return R_NilValue;
}

/* Returns what was printed since. */
EXPORTED SEXP r_end_capture(void)
{
    char note[64];
    is_capturing = 0;
    if (captured_bytes > captured.length) {
        snprintf(note, sizeof note, "\n(cut: %zu bytes in all)", captured_bytes);
        put_bytes(&captured, note, strlen(note));
    }
    for (size_t i = 0; i < captured.length; i++)
        if (!captured.start[i])
            captured.start[i] = ' '; /* no text of R's holds one */
    return Rf_ScalarString(Rf_mkCharLenCE(captured.length ? captured.start : "", (int)captured.length, AS_UTF8));
}
