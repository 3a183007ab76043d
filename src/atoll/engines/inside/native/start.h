/* How a program without a C library starts, and what the compiler expects to find in one. Included once in each. */
#pragma once

#include <stddef.h>

/* Gets the stack as the kernel made it: the number of arguments, then the arguments. */
_Noreturn void start_program(const long *stack);

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n\tmov %rsp, %rdi\n\txor %ebp, %ebp\n\tand $-16, %rsp\n\tcall start_program\n\thlt\n");
#else
__asm__(".globl _start\n_start:\n\tmov x0, sp\n\tmov x29, #0\n\tmov x30, #0\n\tb start_program\n");
#endif

/* The compiler calls these for struct copies and zeroing. */
void *memset(void *target, int byte, size_t count)
{
    char *end = target;
    for (size_t i = 0; i < count; i++)
        end[i] = (char)byte;
    return target;
}

void *memcpy(void *restrict target, const void *restrict source, size_t count)
{
    char *to = target;
    const char *from = source;
    for (size_t i = 0; i < count; i++)
        to[i] = from[i];
    return target;
}
