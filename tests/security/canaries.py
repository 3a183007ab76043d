"""A word in files that lie outside of the workspace: on the host, and in the sandbox's home."""

from __future__ import annotations

import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from atoll.node.commands import Commands
from tests.security.guest import Guest

OUTSIDE = "/home/sandbox/outside"
_NAMES = ("canary", "kept")


@dataclass(frozen=True)
class Canary:
    """One tree on the host, which everybody may read and change, and one in the sandbox."""

    word: str
    folder: Path

    def check_host(self) -> None:
        """Fail if anything on the host has changed."""
        assert sorted(os.listdir(self.folder)) == sorted(_NAMES)
        for name in _NAMES:
            path = self.folder / name
            assert path.read_text() == self.word
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
        assert stat.S_IMODE(self.folder.stat().st_mode) == 0o777

    async def check_guest(self, guest: Guest) -> None:
        """Fail if anything in the sandbox, but outside of the workspace, has changed."""
        line = f"ls -A {OUTSIDE}; cat {OUTSIDE}/canary {OUTSIDE}/kept; stat -c %a {OUTSIDE}/*"
        result = await Commands(guest.sandbox).run(line, check=True)
        assert result.stdout.decode() == f"canary\nkept\n{self.word}{self.word}644\n644\n"


def make_canary(tmp_path: Path) -> Canary:
    """Make the tree on the host; nothing but its being outside protects it."""
    folder = tmp_path / "canaries"
    folder.mkdir()
    canary = Canary(f"canary-{secrets.token_hex(8)}", folder)
    for name in _NAMES:
        (folder / name).write_text(canary.word)
        (folder / name).chmod(0o666)
    folder.chmod(0o777)
    # Else it would be the modes of what lies above that keep a sandbox's id out.
    for above in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        above.chmod(above.stat().st_mode | 0o055)
    return canary
