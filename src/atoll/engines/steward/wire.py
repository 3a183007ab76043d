"""Frames between the host and a steward, and what both have to agree on.

This file is the only place that says how they look: `native/build.py` makes a C header from it. Standard library only,
because it also runs while the package is being built.

Every frame has a head. It is about one object, by a number that the host gives it: a process, a piece of file work, a stream
to a port or a listener. What a listener accepts gets its number from the steward, with `ACCEPTED_BIT` set. Nobody sends
more data than the other has given credit for, so one slow reader holds up nobody else.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_uint8, c_uint16, c_uint32, c_uint64
from enum import IntEnum

STEWARD_VERSION = 1
MAX_DATA = 65536  # of one frame
MAX_FRAME = 2 << 20  # a command with all its arguments and variables
INPUT_CREDIT = 65536  # what the steward holds for each input
ACCEPTED_BIT = 1 << 31
MAX_OBJECTS = 2048


class Order(IntEnum):
    """What the host tells."""

    PING = 1
    START = 2  # behind it the payload of a command
    START_FILES = 3  # behind it a `files_request` with its path and target
    DATA = 4
    END = 5  # of input
    CREDIT = 6  # behind it how many bytes more may come
    SIGNAL = 7
    KILL = 8
    RESIZE = 9
    RELEASE = 10  # nobody reads or waits any more
    DIAL = 11
    LISTEN = 12
    KILL_ALL = 13
    WAKE = 14  # let supervisors that somebody inside has stopped go on


class Word(IntEnum):
    """What the steward tells."""

    HELLO = 1
    STARTED = 2
    FAILED = 3  # a: stage, b: errno
    DATA = 4
    END = 5  # of an output, or of the will to read input (channel 0)
    CREDIT = 6
    ENDED = 7
    SIGNALLED = 8
    GONE = 9  # a process with all that was killed for it; the number may be used again
    CONNECTED = 10  # a stream or a listener is there
    REFUSED = 11  # a: errno
    ACCEPTED = 12  # a: the number of the new stream


class Channel(IntEnum):
    """Which of an object's streams data belongs to."""

    INPUT = 0
    OUTPUT = 1
    ERRORS = 2
    TALK = 3  # what comes from a kernel's channel or from a port


class StartKind(IntEnum):
    """What a process is connected with, in the head of START."""

    STREAMS = 0
    CHANNEL = 1  # standard input is a kernel's channel


class FrameHead(ctypes.Structure):
    """In front of every frame."""

    _fields_ = [
        ("length", c_uint32),  # of what is behind it
        ("object", c_uint32),
        ("kind", c_uint8),
        ("channel", c_uint8),
        ("unused", c_uint16),
    ]


class Numbers(ctypes.Structure):
    """Two numbers, whatever they mean."""

    _fields_ = [("a", c_int32), ("b", c_int32)]


class ProcessEnding(ctypes.Structure):
    """How a process ended, and how many bytes of each output there are to be read at least."""

    _fields_ = [("status", c_int32), ("unused", c_uint32), ("output_bytes", c_uint64 * 2)]


class HelloHead(ctypes.Structure):
    """The first word: versions and sizes; behind it hostname, kernel, /proc/self/status and mounts, NUL-terminated each."""

    _fields_ = [
        ("version", c_uint32),
        ("uid", c_uint32),
        ("gid", c_uint32),
        ("marking", c_int32),  # whether processes are told apart by marks; -1: they cannot be
        ("no_new_privileges", c_int32),
        ("unused", c_uint32),
        ("tree_bytes", c_uint64 * 4),  # of the trees in `TREES`
    ]


class ListedFile(ctypes.Structure):
    """One entry of a directory; behind it its name."""

    _fields_ = [
        ("mode", c_uint32),
        ("name_bytes", c_uint32),
        ("size", c_uint64),
        ("modified_ns", c_uint64),
    ]


# Whose sizes the first word tells.
TREES = ("/workspace", "/tmp", "/home/sandbox", "/dev/shm")

C_CONSTANTS = (
    "STEWARD_VERSION", "MAX_DATA", "MAX_FRAME", "INPUT_CREDIT", "ACCEPTED_BIT", "MAX_OBJECTS",
)  # fmt: skip
C_ENUMS = (Order, Word, Channel, StartKind)
C_STRUCTS: tuple[type[ctypes.Structure], ...] = (
    FrameHead, Numbers, ProcessEnding, HelloHead, ListedFile,
)  # fmt: skip
C_TEXTS = {"TREES": TREES}
