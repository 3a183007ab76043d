"""Objects that a zygote makes while it loads lie side by side, and what comes later lies where Python wants it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import atoll
import atoll_guest

LIBRARY = Path(atoll.__file__).parent / "engines" / "namespaces" / "native" / "bin" / "spawn.so"
PROGRAM = """
import ctypes, json, mmap, sys
sys.path.insert(0, sys.argv[1])
from atoll_guest.arenas import arenas_together

MIB = 1 << 20
def make(mebibytes):
    return [bytes(400) for _ in range(mebibytes * MIB // 440)]
def between():
    # As a library would, this takes the place that the next arena had.
    return mmap.mmap(-1, 16 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

kept = []
with arenas_together(ctypes.PyDLL(sys.argv[2])):
    for _ in range(8):
        kept.append((make(2), between()))
    made = [id(each) for objects, _ in kept[1:] for each in objects]
    make(8)  # and gone again
later = make(4)
spans = [tuple(int(n, 16) for n in line.split()[0].split("-")) for line in open("/proc/self/maps")]
lengths = [end - start for start, end in spans if any(start <= at < end for at in made)]
kept.clear()
print(json.dumps({"largest": max(lengths), "made": len(made) * 440, "later": len(later)}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/PID/maps")
def test_objects_that_are_made_while_libraries_are_mapped_lie_together() -> None:
    guest = Path(atoll_guest.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM, str(guest), str(LIBRARY)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["largest"] >= found["made"]
    assert found["later"]
