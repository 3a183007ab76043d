"""Leaves a named marker in every place that can be written."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from tests.security.attacks.kernel import libc, report


def main() -> None:
    word = sys.argv[1]
    places = []
    for folder, folders, _names in os.walk("/"):
        folders[:] = [
            name for name in folders if os.path.join(folder, name) not in ("/proc", "/usr")
        ]
        with suppress(OSError):
            with open(os.path.join(folder, word), "w") as file:
                file.write(word)
            places.append(folder)
    libc.shmget(0x5EC2E7, 4096, 0o1666)
    report(places=places)


if __name__ == "__main__":
    main()
