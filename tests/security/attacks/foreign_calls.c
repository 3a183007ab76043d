#define _GNU_SOURCE
/* Dangerous calls by other calling conventions: 32-bit ones through interrupt 0x80, and x32 ones by number. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define X32 0x40000000

struct attempt {
    const char *name;
    long number;
};

/* Numbers of the 32-bit table. */
static const struct attempt old_calls[] = {
    {"getpid", 20},      {"mount", 21},      {"ptrace", 26},   {"chroot", 61},        {"clone", 120},
    {"init_module", 128}, {"keyctl", 288},   {"unshare", 310}, {"open_by_handle", 342}, {"setns", 346},
    {"bpf", 357},        {"userfaultfd", 374}, {"io_uring", 425},
};

static const struct attempt x32_calls[] = {
    {"getpid", SYS_getpid}, {"mount", SYS_mount},     {"ptrace", 521},     {"chroot", SYS_chroot},
    {"unshare", SYS_unshare}, {"setns", SYS_setns},   {"keyctl", SYS_keyctl}, {"io_uring", 425},
    {"process_vm_writev", 540}, {"kexec", 528},
};

static long interrupt(long number)
{
    long outcome;
    __asm__ volatile("int $0x80"
                     : "=a"(outcome)
                     : "a"(number), "b"(0L), "c"(0L), "d"(0L), "S"(0L), "D"(0L)
                     : "r8", "r9", "r10", "r11", "memory");
    return (int)outcome;
}

static long by_x32_number(long number)
{
    long outcome;
    __asm__ volatile("syscall"
                     : "=a"(outcome)
                     : "a"(number | X32), "D"(0L), "S"(0L), "d"(0L)
                     : "rcx", "r11", "memory");
    return outcome;
}

static void print_answer(const char *comma, const struct attempt *call, long (*way)(long))
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(1);
        long outcome = way(call->number);
        _exit(outcome < 0 && outcome > -200 ? (int)-outcome : 0);
    }
    int status;
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status))
        printf("%s\"%s\": \"killed\"", comma, call->name);
    else
        printf("%s\"%s\": \"%s\"", comma, call->name, WEXITSTATUS(status) ? strerrorname_np(WEXITSTATUS(status)) : "OK");
}

int main(void)
{
    printf("\n@@ {\"interrupt\": {");
    for (size_t i = 0; i < sizeof old_calls / sizeof *old_calls; i++)
        print_answer(i ? ", " : "", &old_calls[i], interrupt);
    printf("}, \"x32\": {");
    for (size_t i = 0; i < sizeof x32_calls / sizeof *x32_calls; i++)
        print_answer(i ? ", " : "", &x32_calls[i], by_x32_number);
    printf("}}\n");
    return 0;
}
