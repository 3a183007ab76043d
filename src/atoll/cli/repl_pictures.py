"""Pictures at a terminal: shown in place where it can do that, else saved to a file that a line names."""

from __future__ import annotations

import base64
import binascii
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from atoll.model.kernel import Bundle

_ENDINGS = {"image/png": ".png", "image/jpeg": ".jpg", "image/svg+xml": ".svg"}
_KITTY_BYTES = 4096
_KITTY_PROGRAMS = frozenset({"WezTerm", "ghostty"})


class Pictures:
    """What becomes of pictures, as the terminal says of itself in the environment."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        program = environ.get("TERM_PROGRAM", "")
        is_kitty = "KITTY_WINDOW_ID" in environ or environ.get("TERM") == "xterm-kitty"
        self._is_kitty = is_kitty or program in _KITTY_PROGRAMS
        self._is_iterm = program == "iTerm.app"
        self._folder: Path | None = None
        self._count = 0

    def show(self, bundle: Bundle) -> str:
        """Return what to write for the picture of a bundle; nothing if it has none."""
        for kind, ending in _ENDINGS.items():
            if (found := bundle.data.get(kind)) is None:
                continue
            data = _decode(str(found), kind)
            if data is None:
                return ""
            if kind == "image/png" and self._is_kitty:
                return "".join(_kitty(data))
            if kind != "image/svg+xml" and self._is_iterm:
                text = base64.b64encode(data).decode("ascii")
                return f"\033]1337;File=inline=1;size={len(data)}:{text}\a"
            return f"picture: {self._save(data, ending)}"
        return ""

    def _save(self, data: bytes, ending: str) -> Path:
        if self._folder is None:
            # For the person who looks at them, also after the session.
            self._folder = Path(tempfile.mkdtemp(prefix="atoll-repl-"))
        self._count += 1
        path = self._folder / f"{self._count}{ending}"
        path.write_bytes(data)
        return path


def _decode(text: str, kind: str) -> bytes | None:
    if kind == "image/svg+xml":
        return text.encode("utf-8", "replace")
    try:
        return base64.b64decode(text, validate=False)
    except (binascii.Error, ValueError):
        return None  # what a cell made up


def _kitty(data: bytes) -> Iterator[str]:
    """Yield the pieces in which the terminal takes a picture."""
    text = base64.b64encode(data).decode("ascii")
    pieces = [text[at : at + _KITTY_BYTES] for at in range(0, len(text), _KITTY_BYTES)] or [""]
    for number, piece in enumerate(pieces):
        first = "f=100,a=T," if number == 0 else ""
        more = int(number < len(pieces) - 1)
        yield f"\033_G{first}m={more};{piece}\033\\"
