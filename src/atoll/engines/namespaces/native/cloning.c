/* Children that share the memory of a parent which waits, each on a stack of its own: no page table is copied. */
#define _GNU_SOURCE
#include "cloning.h"

#include <linux/sched.h>
#include <signal.h>

#include "sys.h"

/* A call that starts a child on a stack of its own, which the C library has no wrapper for. */
static long start_on_stack(long call, long first, long second, int (*main)(void *))
{
#if defined(__x86_64__)
    register int (*function)(void *) __asm__("r12") = main;
    register long tls __asm__("r8") = 0;
    register long child_tid __asm__("r10") = 0;
    long result;
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "xor %%edi, %%edi\n\t"
                     "call *%%r12\n\t"
                     "hlt\n"
                     "1:"
                     : "=a"(result)
                     : "a"(call), "D"(first), "S"(second), "d"(0L), "r"(child_tid), "r"(tls), "r"(function)
                     : "rcx", "r11", "memory", "cc");
    return result;
#else
    register int (*function)(void *) __asm__("x9") = main;
    register long x8 __asm__("x8") = call;
    register long x0 __asm__("x0") = first;
    register long x1 __asm__("x1") = second;
    register long x2 __asm__("x2") = 0;
    register long x3 __asm__("x3") = 0;
    register long x4 __asm__("x4") = 0;
    __asm__ volatile("svc 0\n\t"
                     "cbnz x0, 1f\n\t"
                     "mov x29, #0\n\t"
                     "blr x9\n"
                     "1:"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(function)
                     : "memory", "cc", "x30");
    return x0;
#endif
}

long clone_on(char *top, int (*function)(void *), uint64_t flags)
{
    return start_on_stack(SYS_clone, (long)(flags | SIGCHLD), (long)top, function);
}

long clone_into(int cgroup, char *top, int (*function)(void *), uint64_t flags)
{
    struct clone_args arguments = {
        .flags = flags | CLONE_INTO_CGROUP,
        .exit_signal = SIGCHLD,
        .stack = (uint64_t)(uintptr_t)(top - STACK_BYTES),
        .stack_size = STACK_BYTES,
        .cgroup = (uint64_t)cgroup,
    };
    return start_on_stack(SYS_clone3, (long)&arguments, sizeof arguments, function);
}
