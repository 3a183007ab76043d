"""Where Atoll keeps its data and looks for its configuration on this machine, and for a server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def data_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where Atoll keeps its data: ATOLL_DATA, /var/lib/atoll for root, else the XDG directory."""
    if chosen := environ.get("ATOLL_DATA"):
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/atoll")
    return _xdg_directory(environ, "XDG_DATA_HOME", ".local/share")


def server_address(environ: Mapping[str, str] = os.environ) -> str:
    """Return the address of the server whose sandboxes are used, ATOLL_URL; empty if they are made in this process."""
    return environ.get("ATOLL_URL", "")


def server_token(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the token that a server is shown: ATOLL_TOKEN, if there is one."""
    return environ.get("ATOLL_TOKEN") or None


def config_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where `atoll.toml` and `.env` are looked for: /etc/atoll for root, else the XDG directory."""
    if os.geteuid() == 0:
        return Path("/etc/atoll")
    return _xdg_directory(environ, "XDG_CONFIG_HOME", ".config")


def _xdg_directory(environ: Mapping[str, str], variable: str, usual: str) -> Path:
    # The XDG rules say that a relative path is to be ignored.
    home = environ.get(variable, "")
    return Path(home if home.startswith("/") else Path.home() / usual) / "atoll"
