"""Messages between whoever watches over a sandbox inside it and the programs there, whatever engine made it.

A supervisor of each command, and file work: the C headers are made from this file, which is the only place that says how
they look. Standard library only, because it also runs while the package is being built.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_int32, c_int64, c_uint32, c_uint64
from enum import IntEnum

MAX_PATH = 4096
MAX_DEPTH = 256  # of a copied tree
MAX_SKIPPED = 100
MAX_SKIPPED_BYTES = 65536


class RunFlag(IntEnum):
    """How a command is run."""

    TERMINAL = 1


class SupervisorOp(IntEnum):
    """What the supervisor of a command is asked."""

    GO = 1
    SIGNAL = 2
    KILL = 3
    KEY = 4  # a signal for whoever has the terminal; only where terminals send none themselves


class SupervisorEvent(IntEnum):
    """What the supervisor of a command tells."""

    STARTED = 1  # a terminal's master comes along; status is 1 if it sends no signals itself
    FAILED = 2  # status is an errno, pid the stage
    ENDED = 3  # status is that of wait
    SIGNALLED = 4  # status is the signal; it was sent, or there was nobody left to send it to


class StartStage(IntEnum):
    """Where starting a command failed."""

    PAYLOAD = 1
    TERMINAL = 2
    FORK = 3
    DIRECTORY = 4
    EXEC = 5


class FilesOp(IntEnum):
    """What the file server of a sandbox is asked."""

    STAT = 1
    OPEN = 2  # answers a descriptor of a regular file
    OPEN_DIRECTORY = 3  # answers a descriptor
    WRITE = 4  # content is `data`, or what the passed descriptor yields
    MAKE_DIRECTORY = 5
    REMOVE = 6
    RENAME = 7
    WRITE_MANY = 8  # fds: memory with entries, each with its path and data
    READ_MANY = 9  # fds: memory with entries, each with its path; memory for the answers
    SEND_TREE = 10  # fds: a pipe; memory with `TreeWork`, where the report goes, too
    RECEIVE_TREE = 11  # the same
    CLEAR = 12  # end all other processes, and empty the tree of an absolute path; stewards only


class FilesFlag(IntEnum):
    """How a file operation is done."""

    RECURSIVE = 1
    FROM_DESCRIPTOR = 2


class TreeKind(IntEnum):
    """What a record of a tree tells."""

    ENTER = 1  # a directory; what follows is in it
    LEAVE = 2
    FILE = 3
    SKIPPED = 4  # something that was left out
    END = 5


class TreeLimit(IntEnum):
    """Which limit ended the copying of a tree."""

    ENTRIES = 1
    DEPTH = 2
    BYTES = 3


class RunHeader(ctypes.Structure):
    """Start of a command's payload; behind it cwd, arguments and environment, NUL-terminated."""

    _fields_ = [
        ("flags", c_uint32),
        ("arguments", c_uint32),
        ("variables", c_uint32),
        ("rows", c_uint32),
        ("columns", c_uint32),
        ("text_bytes", c_uint32),
    ]


class SupervisorRequest(ctypes.Structure):
    """Host to the supervisor of a command."""

    _fields_ = [("op", c_uint32), ("signal", c_int32)]


class SupervisorReport(ctypes.Structure):
    """Supervisor to host."""

    _fields_ = [("event", c_uint32), ("pid", c_int32), ("status", c_int32)]


class FilesRequest(ctypes.Structure):
    """Host to file server; behind it path, target and data."""

    _fields_ = [
        ("op", c_uint32),
        ("flags", c_uint32),
        ("mode", c_uint32),
        ("path_bytes", c_uint32),
        ("target_bytes", c_uint32),
        ("data_bytes", c_uint32),
        ("most_bytes", c_uint64),
    ]


class FilesReply(ctypes.Structure):
    """File server to host; an opened descriptor comes along."""

    _fields_ = [
        ("error", c_int32),
        ("mode", c_uint32),
        ("size", c_uint64),
        ("modified_ns", c_int64),
    ]


class FilesEntry(ctypes.Structure):
    """One file of many, as the host asks for it; behind it the path."""

    _fields_ = [
        ("is_directory", c_uint32),
        ("mode", c_uint32),
        ("path_bytes", c_uint32),
        ("data_bytes", c_uint32),  # of the data behind the path, or the most to read
    ]


class FilesContent(ctypes.Structure):
    """One file of many, as the file server answers it; behind it room for the most that was asked for."""

    _fields_ = [("error", c_int32), ("data_bytes", c_uint32)]


class TreeRecord(ctypes.Structure):
    """One record of a tree on its way; behind it name and data."""

    _fields_ = [
        ("kind", c_uint32),
        ("mode", c_uint32),
        ("name_bytes", c_uint32),
        ("unused", c_uint32),
        ("data_bytes", c_uint64),
    ]


class TreeBounds(ctypes.Structure):
    """The most that is copied of a tree, and how long one side waits for the other to go on."""

    _fields_ = [
        ("entries", c_uint64),
        ("depth", c_uint64),
        ("total_bytes", c_uint64),
        ("patience_ms", c_uint64),
    ]


class TreeReport(ctypes.Structure):
    """How copying a tree went; `path` is where it ended, if it failed."""

    _fields_ = [
        ("error", c_int32),
        ("limit", c_uint32),
        ("entries", c_uint64),
        ("files", c_uint64),
        ("directories", c_uint64),
        ("total_bytes", c_uint64),
        ("skipped", c_uint64),
        ("skipped_bytes", c_uint32),
        ("path_bytes", c_uint32),
        ("path", c_char * MAX_PATH),
        ("skipped_paths", c_char * MAX_SKIPPED_BYTES),  # NUL-terminated each
    ]


class TreeWork(ctypes.Structure):
    """What one end of a copied tree is given, and what it gives back."""

    _fields_ = [("limits", TreeBounds), ("report", TreeReport)]


C_CONSTANTS = ("MAX_PATH", "MAX_DEPTH", "MAX_SKIPPED", "MAX_SKIPPED_BYTES")
C_ENUMS = (
    RunFlag, SupervisorOp, SupervisorEvent, StartStage, FilesOp, FilesFlag, TreeKind, TreeLimit,
)  # fmt: skip
C_STRUCTS: tuple[type[ctypes.Structure], ...] = (
    RunHeader, SupervisorRequest, SupervisorReport, FilesRequest, FilesReply, FilesEntry, FilesContent,
    TreeRecord, TreeBounds, TreeReport, TreeWork,
)  # fmt: skip
