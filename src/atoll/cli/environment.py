"""The few variables of the environment that commands look at; nothing below reads any."""

from __future__ import annotations

import os


def search_path() -> str:
    """Return where programs are looked for."""
    return os.environ.get("PATH", os.defpath)


def terminal_kind() -> str:
    """Return the kind of this terminal, for programs inside that draw on it."""
    return os.environ.get("TERM", "xterm-256color")
