/* Messages as values of R and back. R has no JSON of its own, and the packages that do are not everywhere. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "r.h"

#define MOST_DEPTH 64

void put_bytes(struct text *text, const char *bytes, size_t length)
{
    if (text->room - text->length < length) {
        size_t room = 2 * text->room + length + 256;
        char *grown = realloc(text->start, room);
        if (!grown)
            Rf_error("there is no memory for %zu bytes of output", room);
        text->start = grown;
        text->room = room;
    }
    memcpy(text->start + text->length, bytes, length);
    text->length += length;
}

static void put(struct text *text, const char *literal) { put_bytes(text, literal, strlen(literal)); }

/* Returns how many bytes the character at `at` has, or 0 if it is none. */
static size_t character(const unsigned char *at, size_t left)
{
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = *at < 0x80 ? 1 : *at < 0xc2 ? 0 : *at < 0xe0 ? 2 : *at < 0xf0 ? 3 : *at < 0xf8 ? 4 : 0;
    if (length < 2 || length > left)
        return length < 2 ? length : 0;
    unsigned code = *at & (0x7f >> length);
    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (at[i] & 0x3f);
    }
    return code < least[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : length;
}

static void put_string(struct text *text, const char *string, size_t length)
{
    const unsigned char *at = (const unsigned char *)string, *end = at + length;
    put(text, "\"");
    while (at < end) {
        const unsigned char *plain = at;
        size_t step = 1;
        while (at < end && *at >= 0x20 && *at != '"' && *at != '\\' && (step = character(at, (size_t)(end - at))))
            at += step;
        put_bytes(text, (const char *)plain, (size_t)(at - plain));
        if (at == end)
            break;
        char escaped[8];
        if (!step) /* whatever was printed, a message is valid text */
            snprintf(escaped, sizeof escaped, "\xef\xbf\xbd");
        else if (*at < 0x20)
            snprintf(escaped, sizeof escaped, "\\u%04x", *at);
        else
            snprintf(escaped, sizeof escaped, "\\%c", *at);
        put(text, escaped);
        at++;
    }
    put(text, "\"");
}

static void put_text(struct text *text, SEXP string)
{
    if (string == R_NaString) {
        put(text, "null");
        return;
    }
    const char *bytes = Rf_getCharCE(string) == AS_BYTES ? R_CHAR(string) : Rf_translateCharUTF8(string);
    put_string(text, bytes, strlen(bytes));
}

static void put_real(struct text *text, double value)
{
    char digits[40];
    if (!isfinite(value)) {
        put(text, "null");
        return;
    }
    snprintf(digits, sizeof digits, "%.15g", value);
    if (strtod(digits, 0) != value)
        snprintf(digits, sizeof digits, "%.17g", value);
    put(text, digits);
}

static void put_element(struct text *text, SEXP value, ptrdiff_t index)
{
    char digits[24];
    switch (TYPEOF(value)) {
    case LOGICALS:
        put(text, LOGICAL(value)[index] == NOT_AVAILABLE ? "null" : LOGICAL(value)[index] ? "true" : "false");
        return;
    case INTEGERS:
        snprintf(digits, sizeof digits, "%d", INTEGER(value)[index]);
        put(text, INTEGER(value)[index] == NOT_AVAILABLE ? "null" : digits);
        return;
    case REALS:
        put_real(text, REAL(value)[index]);
        return;
    case STRINGS:
        put_text(text, STRING_ELT(value, index));
        return;
    case LIST:
        put_json(text, VECTOR_ELT(value, index));
        return;
    default:
        put(text, "null");
    }
}

/* A row for each place of its columns, which are as long as each other. */
static void put_rows(struct text *text, SEXP columns)
{
    SEXP names = Rf_getAttrib(columns, R_NamesSymbol);
    ptrdiff_t count = Rf_xlength(columns), rows = count ? Rf_xlength(VECTOR_ELT(columns, 0)) : 0;
    put(text, "[");
    for (ptrdiff_t row = 0; row < rows; row++) {
        put(text, row ? ",{" : "{");
        for (ptrdiff_t i = 0; i < count; i++) {
            put(text, i ? "," : "");
            put_text(text, STRING_ELT(names, i));
            put(text, ":");
            put_element(text, VECTOR_ELT(columns, i), row);
        }
        put(text, "}");
    }
    put(text, "]");
}

void put_json(struct text *text, SEXP value)
{
    SEXP names = Rf_getAttrib(value, R_NamesSymbol);
    ptrdiff_t length = Rf_xlength(value);
    int is_object = TYPEOF(value) == LIST && names != R_NilValue;
    if (TYPEOF(value) == NIL) {
        put(text, "null");
    } else if (Rf_inherits(value, "atoll_rows")) {
        put_rows(text, value);
    } else if (TYPEOF(value) != LIST && length == 1 && !Rf_inherits(value, "AsIs")) {
        put_element(text, value, 0);
    } else {
        put(text, is_object ? "{" : "[");
        for (ptrdiff_t i = 0; i < length; i++) {
            put(text, i ? "," : "");
            if (is_object) {
                put_text(text, STRING_ELT(names, i));
                put(text, ":");
            }
            put_element(text, value, i);
        }
        put(text, is_object ? "}" : "]");
    }
}

/* --- reading ------------------------------------------------------------------------------------------------ */

struct reader {
    const char *at, *end;
    int depth, failed;
};

static void skip_space(struct reader *reader)
{
    while (reader->at < reader->end && memchr(" \t\r\n", *reader->at, 4))
        reader->at++;
}

static int comes(struct reader *reader, const char *literal)
{
    size_t length = strlen(literal);
    skip_space(reader);
    if ((size_t)(reader->end - reader->at) < length || memcmp(reader->at, literal, length))
        return 0;
    reader->at += length;
    return 1;
}

static SEXP fail(struct reader *reader)
{
    reader->failed = 1;
    return R_NilValue;
}

static unsigned take_code(struct reader *reader)
{
    char digits[5] = {0};
    if (reader->end - reader->at < 4) {
        reader->failed = 1;
        return 0;
    }
    memcpy(digits, reader->at, 4);
    reader->at += 4;
    return (unsigned)strtoul(digits, 0, 16);
}

static void put_character(struct text *text, unsigned code)
{
    char bytes[4];
    size_t length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = length; i-- > 1; code >>= 6)
        bytes[i] = (char)(0x80 | (code & 0x3f));
    static const unsigned char first[] = {0, 0, 0xc0, 0xe0, 0xf0};
    bytes[0] = (char)(first[length] | code);
    put_bytes(text, bytes, length);
}

static void take_escape(struct reader *reader, struct text *text)
{
    static const char names[] = "bfnrt", meant[] = "\b\f\n\r\t";
    char name = reader->at < reader->end ? *reader->at++ : 0;
    const char *found = name ? strchr(names, name) : 0;
    if (found) {
        put_bytes(text, &meant[found - names], 1);
    } else if (name == 'u') {
        unsigned code = take_code(reader);
        if (code >= 0xd800 && code < 0xdc00 && reader->end - reader->at > 5 && !memcmp(reader->at, "\\u", 2)) {
            reader->at += 2;
            code = 0x10000 + ((code - 0xd800) << 10) + (take_code(reader) - 0xdc00);
        }
        put_character(text, code);
    } else {
        put_bytes(text, &name, 1);
    }
}

/* Reads the text after a quote. */
static void take_text(struct reader *reader, struct text *text)
{
    text->length = 0;
    while (reader->at < reader->end && *reader->at != '"') {
        const char *plain = reader->at;
        while (reader->at < reader->end && *reader->at != '"' && *reader->at != '\\')
            reader->at++;
        put_bytes(text, plain, (size_t)(reader->at - plain));
        if (reader->at < reader->end && *reader->at == '\\') {
            reader->at++;
            take_escape(reader, text);
        }
    }
    if (reader->at++ >= reader->end)
        reader->failed = 1;
}

static SEXP take_value(struct reader *reader);
static struct text taken;

static SEXP take_string(struct reader *reader)
{
    take_text(reader, &taken);
    if (reader->failed)
        return R_NilValue;
    /* No text of R's holds a NUL; whoever gets this says so. */
    if (taken.length && memchr(taken.start, 0, taken.length))
        return Rf_ScalarString(R_NaString);
    return Rf_ScalarString(Rf_mkCharLenCE(taken.length ? taken.start : "", (int)taken.length, AS_UTF8));
}

static SEXP take_name(struct reader *reader)
{
    if (!comes(reader, "\""))
        return fail(reader);
    take_text(reader, &taken);
    put_bytes(&taken, "", 1);
    SEXP name = reader->failed || !*taken.start ? fail(reader) : Rf_install(taken.start);
    return comes(reader, ":") ? name : fail(reader);
}

static SEXP take_list(struct reader *reader, int is_object)
{
    const char *end = is_object ? "}" : "]";
    SEXP head = Rf_protect(Rf_cons(R_NilValue, R_NilValue)), tail = head;
    int is_first = 1;
    while (!reader->failed && !comes(reader, end)) {
        if (!is_first && !comes(reader, ","))
            fail(reader);
        is_first = 0;
        SEXP name = is_object ? take_name(reader) : R_NilValue;
        SEXP value = reader->failed ? R_NilValue : take_value(reader);
        SETCDR(tail, Rf_cons(value, R_NilValue));
        tail = CDR(tail);
        if (is_object)
            SET_TAG(tail, name);
    }
    SEXP list = Rf_PairToVectorList(CDR(head));
    Rf_unprotect(1);
    return list;
}

static SEXP take_number(struct reader *reader)
{
    char digits[64], *end;
    size_t length = 0;
    skip_space(reader);
    for (; reader->at + length < reader->end && length < sizeof digits - 1; length++) {
        if (!memchr("+-.eE0123456789", reader->at[length], 15))
            break;
        digits[length] = reader->at[length];
    }
    digits[length] = 0;
    double value = strtod(digits, &end);
    if (!length || *end)
        return fail(reader);
    reader->at += length;
    return Rf_ScalarReal(value);
}

static SEXP take_value(struct reader *reader)
{
    if (++reader->depth > MOST_DEPTH)
        return fail(reader);
    SEXP value;
    if (comes(reader, "\""))
        value = take_string(reader);
    else if (comes(reader, "{"))
        value = take_list(reader, 1);
    else if (comes(reader, "["))
        value = take_list(reader, 0);
    else if (comes(reader, "true"))
        value = Rf_ScalarLogical(1);
    else if (comes(reader, "false"))
        value = Rf_ScalarLogical(0);
    else if (comes(reader, "null"))
        value = R_NilValue;
    else
        value = take_number(reader);
    reader->depth--;
    return value;
}

SEXP take_json(const char *text, size_t length)
{
    struct reader reader = {.at = text, .end = text + length};
    SEXP value = take_value(&reader);
    skip_space(&reader);
    return reader.failed || reader.at != reader.end ? 0 : value;
}
