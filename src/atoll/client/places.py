"""Where Atoll keeps its data on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def data_directory() -> Path:
    """Return where Atoll keeps its data: ATOLL_DATA, /var/lib/atoll for root, else the XDG directory."""
    if chosen := os.environ.get("ATOLL_DATA"):
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/atoll")
    # The XDG rules say that a relative path is to be ignored.
    home = os.environ.get("XDG_DATA_HOME", "")
    return Path(home if home.startswith("/") else Path.home() / ".local/share") / "atoll"
