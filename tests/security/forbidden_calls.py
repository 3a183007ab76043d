"""Calls that must be refused, where possible with arguments that the kernel answers otherwise."""

from __future__ import annotations

from tests.security.guest import Call

# The kernel, too, refuses these before it looks at any argument, to whoever has no capability.
REFUSED_TWICE = frozenset(
    "acct fsmount fsopen fspick move_mount pivot_root reboot setdomainname setgroups sethostname"
    " swapoff syslog vhangup".split()
)
HANDLES: list[Call] = [
    ("name_to_handle_at", [-1, "/", 0, 0, 0]),
    ("open_by_handle_at", [-1, 0, 0]),
]
MOUNTING: list[Call] = [
    ("mount", [-1, -1, -1, 0, -1]),
    ("umount2", ["/nowhere", 0xFFFFFFFF]),
    ("pivot_root", [-1, -1]),
    ("chroot", [-1]),
    ("fsopen", ["nonsense", 0xFFFF]),
    ("fsconfig", [-1, 0xFFFF, 0, 0, 0]),
    ("fsmount", [-1, 0xFFFF, 0]),
    ("fspick", [-1, "/nowhere", 0xFFFF]),
    ("open_tree", [-1, "/nowhere", 0xFFFF]),
    ("move_mount", [-1, "/nowhere", -1, "/nowhere", 0xFFFF]),
    ("mount_setattr", [-1, "/nowhere", 0xFFFFFF, 0, 0]),
    ("setns", [-1, 0]),
    ("unshare", [1]),
]
# Calls that escapes have come through.
ESCAPES: list[Call] = [
    ("io_uring_setup", [8, -1]),
    ("io_uring_enter", [-1, 0, 0, 0, 0, 0]),
    ("io_uring_register", [-1, 0, 0, 0]),
    ("bpf", [0, -1, 0]),
    ("bpf", [5, -1, 120]),
    ("perf_event_open", [-1, 0, -1, -1, 0]),
    ("userfaultfd", [1]),  # user-mode faults only, which needs no privilege
    ("keyctl", [0, -3, 0]),
    ("add_key", ["user", "name", "x", 1, -3]),
    ("request_key", ["user", "name", 0, -3]),
    ("ptrace", [0, 0, 0, 0]),
    ("kcmp", [-1, -1, 0, 0, 0]),
    ("process_vm_readv", [1, -1, 1, -1, 1, 0]),
    ("process_vm_writev", [1, -1, 1, -1, 1, 0]),
    ("vmsplice", [-1, -1, 1, 0]),
    ("memfd_secret", [0]),
    ("modify_ldt", [0, -1, 0]),
    ("fanotify_init", [0x200, 0]),  # by file ids, which needs no privilege
    ("mbind", [0, 0, 0, 0, 0, 0]),
    ("move_pages", [0, 0, 0, 0, 0, 0]),
]
