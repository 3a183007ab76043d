"""`python -m atoll`, the same as the `atoll` command."""

from __future__ import annotations

import sys

from atoll.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
