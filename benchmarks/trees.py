"""Trees of files to copy, and whether a copy is whole."""

from __future__ import annotations

import random
from pathlib import Path

from tools.places import Failed, must_run

SMALL_FILES = 1000
LARGE_BYTES = 200 * 1000 * 1000


def make_small_files(folder: Path) -> None:
    """Fill a folder with 1,000 files of 1 to 4 KiB in ten directories."""
    chance = random.Random(1)
    for number in range(SMALL_FILES):
        directory = folder / f"part-{number % 10}"
        directory.mkdir(exist_ok=True)
        (directory / f"{number}.txt").write_bytes(chance.randbytes(chance.randint(1024, 4096)))


def make_large_file(folder: Path) -> None:
    """Put one file of 200 MB, which does not compress, into a folder."""
    chance = random.Random(2)
    with (folder / "large.bin").open("wb") as file:
        for _ in range(LARGE_BYTES // 1_000_000):
            file.write(chance.randbytes(1_000_000))


def new_folder(path: Path) -> Path:
    """Return an empty folder in the place of what is there."""
    must_run(["rm", "-rf", "--", str(path)])
    path.mkdir()
    return path


def check_same(source: Path, copy: Path) -> None:
    """Raise `Failed` unless the copy has the same files of the same sizes."""
    wanted, found = _sizes(source), _sizes(copy)
    if wanted != found:
        raise Failed(f"the copy has {len(found)} files instead of {len(wanted)}, or other sizes")


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}
