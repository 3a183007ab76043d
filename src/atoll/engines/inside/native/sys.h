/* System calls without a C library: for code that runs inside sandboxes, and for code that shares
 * the memory of a suspended parent, where no library state may change. Results are -errno on failure. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
static inline long sys6(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
static inline long sys6(long number, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory", "cc");
    return x0;
}
#else
#error "this machine's system calls are not known: x86-64 and arm64 are"
#endif

#define SYS_PICK(_1, _2, _3, _4, _5, _6, _7, name, ...) name
#define sys(...) SYS_PICK(__VA_ARGS__, sysx6, sysx5, sysx4, sysx3, sysx2, sysx1, sysx0)(__VA_ARGS__)
#define sysx0(n) sys6(n, 0, 0, 0, 0, 0, 0)
#define sysx1(n, a) sys6(n, (long)(a), 0, 0, 0, 0, 0)
#define sysx2(n, a, b) sys6(n, (long)(a), (long)(b), 0, 0, 0, 0)
#define sysx3(n, a, b, c) sys6(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define sysx4(n, a, b, c, d) sys6(n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define sysx5(n, a, b, c, d, e) sys6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define sysx6(n, a, b, c, d, e, f) \
    sys6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

static inline size_t text_length(const char *text)
{
    size_t length = 0;
    while (text[length])
        length++;
    return length;
}

/* Appends to a text that has room by construction; returns its new end. */
static inline char *put_text(char *end, const char *text)
{
    while (*text)
        *end++ = *text++;
    *end = 0;
    return end;
}

static inline char *put_number(char *end, uint64_t number)
{
    char digits[24];
    int count = 0;
    do
        digits[count++] = '0' + number % 10;
    while ((number /= 10));
    while (count)
        *end++ = digits[--count];
    *end = 0;
    return end;
}
