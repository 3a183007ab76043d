/* As much of R's own interface as is used here, and what the parts of its kernel share.
 *
 * What is R's is weak: other interpreters load this library, too, and have none of it. */
#pragma once

#include <stddef.h>

#include "interpreter.h"

#define OF_R extern __attribute__((weak))

typedef struct SEXPREC *SEXP;

enum { NIL = 0, LOGICALS = 10, INTEGERS = 13, REALS = 14, STRINGS = 16, LIST = 19 };
enum { AS_UTF8 = 1, AS_BYTES = 2 };
#define NOT_AVAILABLE (-2147483647 - 1)

OF_R SEXP R_GlobalEnv, R_NilValue, R_NaString, R_NamesSymbol, R_Srcref;
OF_R char *R_TempDir;
OF_R void *R_Outputfile;
OF_R unsigned char R_Interactive, R_Visible; /* of four bytes, or of one in newer versions; the first tells */
OF_R int R_interrupts_pending;
OF_R int (*ptr_R_ReadConsole)(const char *prompt, unsigned char *line, int room, int history);
OF_R void (*ptr_R_WriteConsole)(const char *text, int length);

OF_R int TYPEOF(SEXP value);
OF_R ptrdiff_t Rf_xlength(SEXP value);
OF_R int *LOGICAL(SEXP value);
OF_R int *INTEGER(SEXP value);
OF_R double *REAL(SEXP value);
OF_R const char *R_CHAR(SEXP text);
OF_R SEXP STRING_ELT(SEXP value, ptrdiff_t index);
OF_R SEXP VECTOR_ELT(SEXP value, ptrdiff_t index);
OF_R int Rf_getCharCE(SEXP text);
OF_R const char *Rf_translateCharUTF8(SEXP text);
OF_R SEXP Rf_eval(SEXP expression, SEXP environment);
OF_R SEXP Rf_getAttrib(SEXP value, SEXP name);
OF_R int Rf_inherits(SEXP value, const char *name);
OF_R SEXP Rf_install(const char *name);
OF_R void SET_SYMVALUE(SEXP symbol, SEXP value);
OF_R SEXP Rf_cons(SEXP head, SEXP tail);
OF_R SEXP CDR(SEXP list);
OF_R SEXP SETCDR(SEXP list, SEXP tail);
OF_R void SET_TAG(SEXP list, SEXP name);
OF_R SEXP Rf_PairToVectorList(SEXP list);
OF_R SEXP Rf_mkCharLenCE(const char *text, int length, int encoding);
OF_R SEXP Rf_ScalarString(SEXP text);
OF_R SEXP Rf_ScalarReal(double value);
OF_R SEXP Rf_ScalarLogical(int value);
OF_R SEXP Rf_protect(SEXP value);
OF_R void Rf_unprotect(int count);
OF_R void R_CheckUserInterrupt(void);
OF_R _Noreturn void Rf_error(const char *format, ...);

/* Text that grows. */
struct text {
    char *start;
    size_t length, room;
};
void put_bytes(struct text *text, const char *bytes, size_t length);

/* Appends a value of R's as JSON, or returns the one that some JSON says; NULL if it says none. */
void put_json(struct text *text, SEXP value);
SEXP take_json(const char *text, size_t length);

/* Where cells print to. */
void write_out(const char *bytes, size_t length);

/* Lets R take this for a session, or no cell could ask for anything. */
void be_interactive(void);

/* A line from the host, which is the cell's input: its length, or -1 if nobody is there to give one. */
int ask_for_line(const char *prompt, char *line, int room);

/* Called in a kernel that is a copy of a zygote, and in one that is a program of its own. */
void begin_channel(int descriptor);
