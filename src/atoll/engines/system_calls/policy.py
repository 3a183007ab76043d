"""The system calls that code in a sandbox may make: an explicit list, with a reason for each group.

What is not listed here and not refused below is unknown and answers ENOSYS, as on an older kernel, so
that libraries fall back instead of failing. What is refused for security answers EPERM.

Some old calls are here because current C libraries still make them: tar opens archives with `creat`, Redis and
nginx wait with `epoll_create`, musl signals threads with `tkill`.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from types import MappingProxyType

from atoll.engines.system_calls.verdicts import ALLOW, Arguments, Test, Verdict, errno_verdict

DENIED = errno_verdict(errno.EPERM)
UNKNOWN = errno_verdict(errno.ENOSYS)
_NO_FAMILY = errno_verdict(errno.EAFNOSUPPORT)
_NO_ATTRIBUTES = errno_verdict(errno.EOPNOTSUPP)
_NOTHING_TO_DO = errno_verdict(0)

# Reading and writing files that the sandbox's own tree holds.
_FILES = """
    read write open creat close stat fstat lstat poll lseek pread64 pwrite64 readv writev preadv pwritev access
    pipe pipe2 select pselect6 ppoll dup dup2 dup3 fcntl flock fsync fdatasync truncate
    ftruncate getdents64 getcwd chdir fchdir rename renameat renameat2 mkdir mkdirat rmdir link
    linkat unlink unlinkat symlink symlinkat readlink readlinkat chown fchown
    lchown fchownat umask utimensat statfs fstatfs sync sendfile splice copy_file_range
    fallocate fadvise64 openat openat2 newfstatat faccessat faccessat2 statx close_range
    getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
    inotify_init inotify_init1 inotify_add_watch inotify_rm_watch
"""
# Memory of the own process, and shared memory within the own ipc namespace.
_MEMORY = """
    mmap mprotect munmap brk mremap msync mincore madvise mlock munlock memfd_create membarrier
    shmget shmat shmctl shmdt
"""
# Signals, to processes of the own pid namespace.
_SIGNALS = """
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend
    sigaltstack kill tgkill tkill pause restart_syscall signalfd4 alarm
"""
# Telling and waiting for time; setting the clock is refused.
_TIME = """
    nanosleep clock_nanosleep getitimer setitimer gettimeofday time times clock_gettime clock_getres
    timer_create timer_settime timer_delete timerfd_create timerfd_settime
"""
# Processes and threads: without namespaces, without other identities.
_PROCESSES = """
    fork vfork execve execveat exit exit_group wait4 waitid getpid getppid gettid getpgid getpgrp setpgid setsid
    getsid getuid geteuid getgid getegid getresuid getresgid getgroups getrlimit getrusage
    getpriority setpriority prctl arch_prctl set_tid_address set_robust_list futex futex_waitv
    rseq sched_yield sched_getaffinity sched_setaffinity sched_getparam
    sched_getscheduler sched_setscheduler sched_get_priority_max sched_get_priority_min
    capget uname sysinfo getcpu getrandom pidfd_open pidfd_send_signal
"""
# Sockets of the families allowed below, in a network namespace that has only a loopback.
_SOCKETS = """
    bind connect listen accept accept4 getsockname getpeername setsockopt getsockopt sendto recvfrom sendmsg
    recvmsg sendmmsg recvmmsg shutdown
"""
_EVENTS = """
    epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd2
"""
# System V semaphores, in an own ipc namespace; databases use them.
_IPC = "semget semop semctl semtimedop"
# Programs that fence themselves in further may.
_CONFINEMENT = "seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self"

# Refused with EPERM, each for a reason: a way to privileges, to other processes, or into rarely tested
# kernel code that escapes have come through.
_REFUSED = """
    mount umount2 pivot_root chroot fsopen fsconfig fsmount fspick open_tree move_mount mount_setattr statmount
    listmount open_tree_attr swapon swapoff quotactl quotactl_fd
    unshare setns setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capset
    ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd process_madvise process_mrelease
    bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register
    keyctl add_key request_key open_by_handle_at name_to_handle_at
    kexec_load kexec_file_load init_module finit_module delete_module create_module reboot acct syslog
    settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname
    modify_ldt iopl ioperm move_pages migrate_pages mbind set_mempolicy set_mempolicy_home_node get_mempolicy
    lookup_dcookie fanotify_init fanotify_mark vhangup nfsservctl uselib ustat sysfs _sysctl
    memfd_secret vmsplice lsm_set_self_attr map_shadow_stack
"""

_NAMESPACE_FLAGS = 0x7E020000
_TYPE_OF_FILE = 0o170000
_SET_ID = 0o6000
_S_IFIFO, _S_IFREG, _S_IFSOCK = 0o010000, 0o100000, 0o140000
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_TIOCSTI, _TIOCLINUX, _TIOCCONS, _TIOCSETD = 0x5412, 0x541C, 0x541D, 0x5423
_FS_IOC_SETFLAGS, _FS_IOC32_SETFLAGS, _FS_IOC_FSSETXATTR = 0x40086602, 0x40046602, 0x401C5820
_EVERYTHING = _UNCHANGED = 0xFFFFFFFF
_OWN_ID = 65532

# The ids that a process has already are the only ones there are here. Programs that make sure of them (make, through
# posix_spawn; servers that give up root) hear that they have them; any other id is refused.
_OWN_ID_ALONE = Arguments((Test(0, (_OWN_ID,), _NOTHING_TO_DO),), DENIED)
_OWN_IDS = Arguments(
    (
        Test(1, (_OWN_ID, _UNCHANGED), _NOTHING_TO_DO, and_also=(0, _UNCHANGED)),
        Test(1, (_OWN_ID, _UNCHANGED), _NOTHING_TO_DO, and_also=(0, _OWN_ID)),
    ),
    DENIED,
)

BY_ARGUMENT: Mapping[str, Verdict] = MappingProxyType(
    {
        "clone": Arguments((Test(0, (0,), ALLOW, mask=_NAMESPACE_FLAGS),), DENIED),
        # Its flags are behind a pointer, where no filter can see them; libraries fall back to clone.
        "clone3": UNKNOWN,
        # Other families reach drivers, the hypervisor and the firewall; netlink only for asking for addresses.
        "socket": Arguments(
            (
                Test(0, (_AF_UNIX, _AF_INET, _AF_INET6), ALLOW),
                Test(0, (_AF_NETLINK,), ALLOW, and_also=(2, 0)),
            ),
            _NO_FAMILY,
        ),
        "socketpair": Arguments((Test(0, (_AF_UNIX,), ALLOW),), _NO_FAMILY),
        # Typing into a terminal, line disciplines, and flags that keep a file from being deleted.
        "ioctl": Arguments(
            (
                Test(1, (_TIOCSTI, _TIOCLINUX, _TIOCCONS, _TIOCSETD), DENIED),
                Test(1, (_FS_IOC_SETFLAGS, _FS_IOC32_SETFLAGS, _FS_IOC_FSSETXATTR), DENIED),
            ),
            ALLOW,
        ),
        # Pipes, sockets and files, no devices.
        "mknod": Arguments(
            (Test(1, (0, _S_IFREG, _S_IFIFO, _S_IFSOCK), ALLOW, mask=_TYPE_OF_FILE),), DENIED
        ),
        "mknodat": Arguments(
            (Test(2, (0, _S_IFREG, _S_IFIFO, _S_IFSOCK), ALLOW, mask=_TYPE_OF_FILE),), DENIED
        ),
        # No set-id programs: here they mean nothing, on a host directory that was mounted they would.
        "chmod": Arguments((Test(1, (0,), ALLOW, mask=_SET_ID),), DENIED),
        "fchmod": Arguments((Test(1, (0,), ALLOW, mask=_SET_ID),), DENIED),
        "fchmodat": Arguments((Test(2, (0,), ALLOW, mask=_SET_ID),), DENIED),
        # Of the caller himself: init and supervisors have his id, and no room without descriptors or time.
        "prlimit64": Arguments((Test(0, (0,), ALLOW),), DENIED),
        # Only asking, and the ordinary personality.
        "personality": Arguments((Test(0, (0, _EVERYTHING), ALLOW),), DENIED),
        **dict.fromkeys(("setuid", "setgid"), _OWN_ID_ALONE),
        **dict.fromkeys(("setreuid", "setregid", "setresuid", "setresgid"), _OWN_IDS),
        # As a file system without them: programs that copy files with all they carry pass over it, which they do
        # not for a call that is missing.
        **dict.fromkeys(("setxattr", "lsetxattr", "fsetxattr"), _NO_ATTRIBUTES),
        **dict.fromkeys(("removexattr", "lremovexattr", "fremovexattr"), _NO_ATTRIBUTES),
    }
)

_GROUPS = (_FILES, _MEMORY, _SIGNALS, _TIME, _PROCESSES, _SOCKETS, _EVENTS, _IPC, _CONFINEMENT)
ALLOWED = frozenset(" ".join(_GROUPS).split())
REFUSED = frozenset(_REFUSED.split())
