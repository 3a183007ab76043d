"""Writes what looks like the engine's own messages to every descriptor there is; ends with 7."""

from __future__ import annotations

import os
import socket
import struct
import sys
from contextlib import suppress

from tests.security.attacks.kernel import report

STARTED, ENDED = 1, 3


def main() -> None:
    written = 0
    messages = [struct.pack("<Iii", event, os.getpid(), 0) for event in (STARTED, ENDED)]
    messages.append(struct.pack("<iIQq", 0, 0o100644, 4, 0))
    for fd in (0, 1, 2, *range(3, 256)):
        for message in messages:
            with suppress(OSError):
                os.write(fd, message)
                written += 1
            with suppress(OSError):
                socket.socket(fileno=os.dup(fd)).send(message)
                written += 1
    for pid in (name for name in os.listdir("/proc") if name.isdigit()):
        with suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    os.write(
                        os.open(f"/proc/{pid}/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK), messages[1]
                    )
    report(written=written)
    sys.exit(7)


if __name__ == "__main__":
    main()
