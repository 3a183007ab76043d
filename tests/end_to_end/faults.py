"""Faults that are made inside a node's process, by a library that is loaded into it before all others."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_SOURCE = Path(__file__).with_name("preload.c")
_NUMBER = struct.Struct("=q")


class Faults:
    """Another wall clock and a failing disk, for processes that are started with `settings`."""

    def __init__(self, folder: Path, data: Path) -> None:
        """Build the library in `folder`; what fails are files below `data/` that the node writes."""
        page = folder / "faults"
        page.write_bytes(bytes(mmap.PAGESIZE))
        with page.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 0)
        self.settings: Mapping[str, str] = {
            "LD_PRELOAD": str(build(folder)),
            "FAULTS_PAGE": str(page),
            "FAULTS_FOLDER": f"{data}/",
        }

    @property
    def failed(self) -> int:
        """How many writes have failed."""
        return self._read(2)

    def move_clock(self, seconds: int) -> None:
        """Let the wall clock be so much ahead of the machine's."""
        self._write(0, seconds)

    def fail_one_in(self, many: int) -> None:
        """Let one of so many writes fail; none with 0."""
        self._write(1, many)

    def _read(self, place: int) -> int:
        (value,) = _NUMBER.unpack_from(self._page, place * _NUMBER.size)
        return int(value)

    def _write(self, place: int, value: int) -> None:
        _NUMBER.pack_into(self._page, place * _NUMBER.size, value)


@cache
def build(folder: Path) -> Path:
    """Return the library, built in a folder."""
    library = folder / "preload.so"
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", os.fspath(library)]
    subprocess.run(["cc", *options, os.fspath(_SOURCE), "-ldl"], check=True)
    return library
