"""Disks that are soon full, or break."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_disk(folder: Path, size_bytes: int, inodes: int | None = None) -> Iterator[Path]:
    """Mount a file system of that size at a new folder, with room for so many files; needs root."""
    folder.mkdir()
    options = f"size={size_bytes}" if inodes is None else f"size={size_bytes},nr_inodes={inodes}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
