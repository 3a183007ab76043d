"""The first word of a steward: what can only be seen from inside."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

from atoll.engines.steward.wire import STEWARD_VERSION, TREES, HelloHead
from atoll.errors import Unavailable

# What the second kernel says of its build, in every version.
_GVISOR_KERNEL = "#1 SMP Sun Jan 10 15:06:54 PST 2016"


@dataclass(frozen=True, slots=True)
class Hello:
    """What a steward saw when it came up, before anything of the user's ran."""

    uid: int
    gid: int
    hostname: str
    kernel: str  # what it says of its build
    no_new_privileges: bool
    # A kernel that cannot say whose an orphan is; see marks.c.
    uses_marks: bool
    status: Mapping[str, str]  # /proc/self/status
    mounts: str  # /proc/self/mounts
    sizes: Mapping[str, int]  # bytes of the trees that can be written

    @property
    def is_gvisor(self) -> bool:
        """Whether the kernel that it saw is gVisor's, by what that says of its build."""
        return _GVISOR_KERNEL in self.kernel


def parse_hello(data: bytes) -> Hello:
    """Return a first word; raise `Unavailable` if it is none, or one of another version."""
    try:
        head = HelloHead.from_buffer_copy(data)
        texts = data[ctypes.sizeof(HelloHead) :].decode("utf-8", "replace").split("\0")
        hostname, kernel, status, mounts = texts[:4]
    except ValueError as error:
        raise Unavailable("the sandbox's first word makes no sense; it was destroyed") from error
    if head.version != STEWARD_VERSION:
        raise Unavailable(
            f"the sandbox's steward is of version {head.version}, this is for {STEWARD_VERSION}; it was destroyed"
        )
    if head.marking < 0:
        raise Unavailable(
            "commands could not be ended with all that they start: this kernel does not say whose an orphan is;"
            " let RLIMIT_RSS and RLIMIT_MEMLOCK of the sandbox be unlimited"
        )
    return Hello(
        uid=head.uid,
        gid=head.gid,
        hostname=hostname,
        kernel=kernel,
        no_new_privileges=head.no_new_privileges == 1,
        uses_marks=head.marking > 0,
        status=_parse_status(status),
        mounts=mounts,
        sizes=dict(zip(TREES, head.tree_bytes, strict=True)),
    )


def _parse_status(text: str) -> Mapping[str, str]:
    lines = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _colon, value in lines}
