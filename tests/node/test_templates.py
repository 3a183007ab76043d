"""Trees that are being made: whoever is killed meanwhile leaves nothing for good."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from atoll.node.templates import Templates

_MAKER = """
import sys, time
from pathlib import Path
from atoll.node.templates import Templates

with Templates(Path(sys.argv[1])).scratch() as folder:
    (folder / "half").write_text("made")
    print(folder, flush=True)
    time.sleep(1000)
"""


def start_making(data: Path) -> tuple[subprocess.Popen[str], Path]:
    command = [sys.executable, "-c", _MAKER, str(data)]
    maker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    return maker, Path(maker.stdout.readline().strip())


def end(maker: subprocess.Popen[str]) -> None:
    maker.send_signal(signal.SIGKILL)
    maker.communicate()


def test_what_a_killed_program_was_making_goes_and_what_is_being_made_stays(tmp_path: Path) -> None:
    killed, left = start_making(tmp_path)
    living, wanted = start_making(tmp_path)
    try:
        end(killed)
        assert left.is_dir()
        Templates(tmp_path).remove_leftovers()
        assert not left.exists()
        assert (wanted / "half").read_text() == "made"
    finally:
        end(living)
    with Templates(tmp_path).scratch() as fresh:
        assert not wanted.exists()
        assert fresh.is_dir()
    assert not fresh.exists()
