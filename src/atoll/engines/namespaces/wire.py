"""Fixed-size messages between the host and the native parts, and what both have to agree on.

This file is the only place that says how they look: `native/build.py` makes the C header from it, and from
`inside/wire.py` another.
Standard library only, because it also runs while the package is being built.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_int32, c_uint32, c_uint64
from enum import IntEnum

VERSION = 1
MAX_MOUNTS = 8
MAX_CGROUP_FDS = 8
KERNEL_FDS = 5
# A kernel that could not be sealed exits with this and the number of the step.
KERNEL_FAILED = 100
MAX_TEXT = 2048
MAX_TARGET = 256
MAX_PATH = 4096
MAX_KEPT_NAME = 96
MAX_KEPT_NOTE = 64
MAX_KEPT_FDS = 8
# What the filter answers to the probe call, an errno that no kernel has.
PROBE_ERRNO = 1066
PROBE_CALL = 1066
# What of /proc tells too much about the machine; each that a kernel has is covered.
MASKED_FILES = (
    "kcore", "kmsg", "kallsyms", "keys", "key-users", "timer_list", "slabinfo", "vmallocinfo", "kpagecount",
    "kpageflags", "kpagecgroup", "config.gz", "diskstats", "partitions", "sched_debug", "latency_stats",
    "sysrq-trigger", "timer_stats", "cmdline", "modules",
    "interrupts",  # shows when somebody types
)  # fmt: skip
MASKED_DIRECTORIES = ("acpi", "asound", "bus", "driver", "fs", "irq", "scsi")


class Step(IntEnum):
    """Every step of making a sandbox, in order. Each can be made to fail in a testing build."""

    NONE = 0
    # The keeper and the jail that holds the zygotes.
    JAIL_USER_NAMESPACE = 1
    JAIL_NAMESPACES = 2
    JAIL_PRIVATE_MOUNTS = 3
    JAIL_SCRATCH = 4
    JAIL_PIVOT_OUT = 5
    JAIL_TREE = 6
    JAIL_PROC = 7
    JAIL_PIVOT_IN = 8
    JAIL_DETACH_HOST = 9
    JAIL_READ_ONLY = 10
    JAIL_IDS = 11
    JAIL_CAPABILITIES = 12
    JAIL_NO_NEW_PRIVILEGES = 13
    ZYGOTE_FILTER = 14
    ZYGOTE_START = 15
    # One sandbox.
    CLONE = 16
    LOOPBACK = 17
    HELLO = 18
    SELF_MAP = 19
    PROC = 20
    NO_USER_NAMESPACES = 21
    PROC_MASKS = 22
    PROC_READ_ONLY = 23
    HOSTNAME = 24
    RLIMITS = 25
    CGROUP_ENTER = 26
    GO = 27
    CGROUP_NAMESPACE = 28
    TERMINALS = 29
    SHM = 30
    TMP = 31
    HOME = 32
    WORKSPACE = 33
    MOUNTS = 34
    WORKING_DIRECTORY = 35
    KEYRING = 36
    GROUPS = 37
    GROUP_ID = 38
    USER_ID = 39
    BOUNDING_SET = 40
    AMBIENT_SET = 41
    SECUREBITS = 42
    CAPABILITIES = 43
    NO_NEW_PRIVILEGES = 44
    LANDLOCK = 45
    FILTER = 46
    DESCRIPTORS = 47
    EXEC_INIT = 48
    # Inside, before anything of the user's runs.
    UNDUMPABLE = 49
    PROBE = 50
    # A kernel: a fork of a warm interpreter, at birth of the sandbox or later.
    JOIN = 51
    KERNEL_FORK = 52
    SUPERVISOR = 53


class KeeperOp(IntEnum):
    """What the keeper is asked."""

    JAIL = 1  # fds: plan, socket to the reaper
    MOUNT = 2  # answers a detached mount of `path`; fds: an image to mount in its place, if any
    SWEEP = 3  # remove the cgroup directories below `path` at the end
    # Only one that lasts. The first two are not answered.
    KEEP = 4  # fds: whatever is to be kept under that name, in place of what is
    FORGET = 5  # a name, or all that begin with one that ends in /
    RECALL = 6  # answers all that is kept, one message each, then one with this op
    END = 7  # end every jail and itself


class JailOp(IntEnum):
    """What the reaper of a jail is asked, and what it tells."""

    ZYGOTE = 1  # fds: control socket, filter program
    ZYGOTE_ENDED = 2


class PlanOp(IntEnum):
    """How one entry of the jail's tree is made."""

    DIRECTORY = 1
    BIND = 2  # read-only, nosuid, nodev
    DEVICE = 3
    SYMLINK = 4
    TEXT = 5
    COPY = 6
    OVERLAY = 7  # read-only, hides the path it comes from
    MASK = 8  # an empty directory over what is there


class PlanFlag(IntEnum):
    """How an entry of the plan is treated."""

    OPTIONAL = 1  # a source that does not exist is passed over
    WRITABLE = 2
    EXECUTABLE = 4


class SpawnFlag(IntEnum):
    """How a sandbox is made."""

    SELF_MAP = 1  # the child writes its own id map: no root outside
    CGROUP_INTO = 2  # fds start with a v2 cgroup directory for CLONE_INTO_CGROUP
    RAISE_OOM_SCORE = 4  # nobody outside can do it for the child
    KERNEL = (
        8  # fork a kernel; fds end with its supervisor's control, its channel, its standard streams
    )
    JOIN = 16  # no new sandbox: fds start with the pidfd of an init instead of a boot socket
    SPLIT = 32  # no sandbox at all: the zygote makes a copy of itself, which serves the one fd
    LOW_PORTS = 64  # whoever is inside may listen on ports below 1024, too


class InitOp(IntEnum):
    """What the init of a sandbox is asked. Every request carries one socket to answer on."""

    RUN = 1  # fds: control, payload, and unless it is a terminal: stdin, stdout, stderr
    FILES = 2
    CONNECT = 3
    LISTEN = 4
    KILL_ALL = 5
    WAKE = 6  # let supervisors that somebody inside has stopped go on


class KeeperRequest(ctypes.Structure):
    """Host to keeper."""

    _fields_ = [
        ("op", c_uint32),
        ("failpoint", c_uint32),
        ("omit", c_uint64),
        ("uid", c_uint32),  # of the zygotes; 0 keeps the keeper's own
        ("plan_entries", c_uint32),
        ("writable", c_uint32),
        ("unused", c_uint32),
        ("path", c_char * MAX_PATH),
    ]


class KeeperHello(ctypes.Structure):
    """The first message of a keeper that lasts, to whoever connects."""

    _fields_ = [
        ("version", c_uint32),
        ("step", c_int32),
        ("error", c_int32),  # EBUSY: somebody else is connected
        ("pid", c_int32),
        ("most_descriptors", c_uint32),
    ]


class KeptEntry(ctypes.Structure):
    """Host to keeper and back: descriptors under a name of the form `group/rest`, and a note."""

    _fields_ = [
        ("op", c_uint32),
        ("fds", c_uint32),  # how many were given; fewer arrive where there was no room
        ("name", c_char * MAX_KEPT_NAME),
        ("note", c_char * MAX_KEPT_NOTE),
    ]


class PlanEntry(ctypes.Structure):
    """One entry of the jail's tree."""

    _fields_ = [
        ("op", c_uint32),
        ("flags", c_uint32),
        ("target", c_char * MAX_TARGET),
        ("source", c_char * MAX_TEXT),
    ]


class StepReply(ctypes.Structure):
    """How a request went: `error` is 0 or the errno at `step`."""

    _fields_ = [("step", c_int32), ("error", c_int32), ("pid", c_int32)]


class JailMessage(ctypes.Structure):
    """Between host and reaper, both ways."""

    _fields_ = [
        ("op", c_uint32),
        ("pid", c_int32),
        ("status", c_int32),
        ("interpreter", c_uint32),  # a zygote that is an interpreter and can fork kernels
    ]


class MountTarget(ctypes.Structure):
    """Where a passed mount goes."""

    _fields_ = [("path", c_char * MAX_TARGET), ("writable", c_uint32)]


class SpawnRequest(ctypes.Structure):
    """Host to zygote. Descriptors: boot socket, cgroups, mounts (the workspace's first, if any), a kernel's."""

    _fields_ = [
        ("version", c_uint32),
        ("flags", c_uint32),
        ("omit", c_uint64),
        ("failpoint", c_uint32),
        ("outer_uid", c_uint32),
        ("outer_gid", c_uint32),
        ("cgroup_fds", c_uint32),
        ("mounts", c_uint32),
        ("inodes", c_uint32),
        ("open_files", c_uint64),
        ("processes", c_uint64),  # 0: no rlimit
        ("data_bytes", c_uint64),  # 0: no rlimit
        ("file_bytes", c_uint64),
        ("workspace_bytes", c_uint64),  # 0: the first mount is the workspace
        ("tmp_bytes", c_uint64),
        ("home_bytes", c_uint64),
        ("shm_bytes", c_uint64),
        ("hostname", c_char * 64),
        ("mount", MountTarget * MAX_MOUNTS),
    ]


class InitHello(ctypes.Structure):
    """The first message of a sandbox's init: what can only be seen from inside."""

    _fields_ = [
        ("version", c_uint32),
        ("probe", c_int32),  # errno of the probe call
        ("io_uring", c_int32),  # errno of io_uring_setup
        ("dumpable", c_int32),
        ("securebits", c_int32),
        ("user_namespaces", c_int32),  # how many may be made
        ("landlock", c_int32),  # its version in the kernel, or -errno
        ("proc_write", c_int32),  # errno of opening a file of its own in /proc for writing
        ("hostname", c_char * 64),
    ]


class InitRequest(ctypes.Structure):
    """Host to init."""

    _fields_ = [("op", c_uint32), ("id", c_uint32), ("port", c_uint32), ("address", c_uint32)]


C_CONSTANTS = ("VERSION", "MAX_MOUNTS", "MAX_CGROUP_FDS", "KERNEL_FDS", "KERNEL_FAILED", "MAX_TEXT", "MAX_TARGET", "MAX_PATH",
               "MAX_KEPT_NAME", "MAX_KEPT_NOTE", "MAX_KEPT_FDS", "PROBE_ERRNO", "PROBE_CALL")  # fmt: skip
C_ENUMS = (Step, KeeperOp, JailOp, PlanOp, PlanFlag, SpawnFlag, InitOp)
C_STRUCTS: tuple[type[ctypes.Structure], ...] = (
    KeeperRequest, KeeperHello, KeptEntry, PlanEntry, StepReply, JailMessage, MountTarget, SpawnRequest, InitHello,
    InitRequest,
)  # fmt: skip
C_TEXTS = {
    "MASKED_FILES": tuple(f"/proc/{path}" for path in MASKED_FILES),
    "MASKED_DIRECTORIES": tuple(f"/proc/{path}" for path in MASKED_DIRECTORIES),
}
