"""Looks for a key of the host's in the session keyring, and reads it."""

from __future__ import annotations

import platform
import sys

from tests.security.attacks.kernel import call, error_name, raw_call, report

KEYCTL = 250 if platform.machine() == "x86_64" else 219
SESSION = -3
SEARCH, READ = 10, 11


def main() -> None:
    key = raw_call(KEYCTL, SEARCH, SESSION, b"user", sys.argv[1].encode(), 0)
    answer = error_name(-key) if key < 0 else call(KEYCTL, READ, key, bytes(64), 64)
    report(answer=answer)


if __name__ == "__main__":
    main()
