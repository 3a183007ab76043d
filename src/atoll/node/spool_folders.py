"""The folders that kernels' words go into, each used by one kernel after another: to make files anew costs every sandbox a millisecond."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from atoll.node.execution_log import LIMIT_BYTES

FILES = ("channel", "stdout", "stderr", "state", "label")

_SPARE = "spare-"
_MOST_SPARE = 32


class SpoolFolders:
    """All such folders of a node, in one directory; those in use are named by whoever uses them.

    Of each stream that a cell prints on they hold `output_bytes`; nobody would keep more of it. Files are emptied `in_background`, if
    that is given: it takes longer than all else of a sandbox's end. What is not done by the end of the node, the next one does.
    """

    def __init__(
        self,
        folder: Path,
        output_bytes: int = LIMIT_BYTES,
        in_background: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self.output_bytes = output_bytes
        self._in_background = in_background
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._spare = [each for each in os.listdir(folder) if each.startswith(_SPARE)]

    def find(self, beginning: str) -> Sequence[Path]:
        """Return the folders in use whose name begins so, the oldest first."""
        found = [
            self._folder / name for name in os.listdir(self._folder) if name.startswith(beginning)
        ]
        return sorted(found, key=lambda each: each.stat().st_ctime_ns)

    def keep_only(self, beginnings: Collection[str]) -> None:
        """Take back all folders in use but those whose name up to the first dot is one of these."""
        for name in os.listdir(self._folder):
            if "." in name and name.partition(".")[0] not in beginnings:
                self.give_back(self._folder / name)

    def place(self, name: str) -> Path:
        """Return where the folder of that name is."""
        return self._folder / name

    def take(self, name: str) -> Path:
        """Return a folder of that name, whose files are empty."""
        folder = self._folder / name
        while self._spare:
            try:
                os.rename(self._folder / self._spare.pop(), folder)
            except FileNotFoundError:
                continue  # somebody tidied up by hand
            os.utime(folder)  # it is young again, which keeps housekeeping from it
            return folder
        folder.mkdir(mode=0o700)
        return folder

    def give_back(self, folder: Path) -> None:
        """Take a folder back that nobody needs any more; one that is gone is fine."""
        if self._in_background is None:
            self._take_back(folder)
        else:
            self._in_background(partial(self._take_back, folder))

    def _take_back(self, folder: Path) -> None:
        if len(self._spare) >= _MOST_SPARE or not _empty(folder):
            shutil.rmtree(folder, ignore_errors=True)
            return
        spare = f"{_SPARE}{secrets.token_hex(8)}"
        try:
            os.rename(folder, self._folder / spare)
        except FileNotFoundError:
            return  # somebody tidied up by hand
        self._spare.append(spare)


def _empty(folder: Path) -> bool:
    """Empty all files, as what one kernel said must never be there for another; return whether that was done."""
    try:
        for name in FILES:
            os.truncate(folder / name, 0)
    except OSError:
        return False
    return True
