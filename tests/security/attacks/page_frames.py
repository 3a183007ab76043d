"""Reads where in the machine's memory the pages of this process lie."""

from __future__ import annotations

import ctypes
import struct

from tests.security.attacks.kernel import report

FRAME = (1 << 55) - 1


def main() -> None:
    buffer = ctypes.create_string_buffer(b"x" * 65536)
    with open("/proc/self/pagemap", "rb", 0) as pagemap:
        pagemap.seek(ctypes.addressof(buffer) // 4096 * 8)
        entries = struct.unpack("<8Q", pagemap.read(64))
    report(frames=[entry & FRAME for entry in entries])


if __name__ == "__main__":
    main()
