"""Boots a guest, has it do a job and brings back what the job left."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.guest.image import GuestImage
from tools.bootstrap import ROOT

# Emulated, so that it runs everywhere, and ended with whoever started it.
MACHINE = """setpriv --pdeathsig KILL qemu-system-x86_64 -M pc -accel tcg
    -cpu qemu64,+rdrand -smp 2 -nodefaults -no-user-config -display none
    -no-reboot""".split()
KERNEL_OPTIONS = ("console=ttyS0", "loglevel=4", "panic=-1", "mitigations=off")
RESULT_BYTES = 8 << 20
CHECKOUT = ("pyproject.toml", "src", "tests", "tools")


@dataclass(frozen=True)
class Outcome:
    """What a guest left: the console's text, and the files of its result disk by name."""

    console: str
    files: dict[str, bytes]


def run_job(
    image: GuestImage,
    start: str,
    folder: Path,
    *,
    seconds: float,
    kernel_options: Sequence[str] = (),
    memory_mib: int = 1024,
) -> Outcome:
    """Boot, run the shell script `start` in a copy of this checkout, and switch off.

    The script finds the copy in `atoll`; what it leaves in /run/result comes back.

    Raises:
        TimeoutError: the guest did not switch off within `seconds`; it was killed.
    """
    job, result, console = folder / "job.tar", folder / "result.tar", folder / "console"
    pack_job(job, start)
    with result.open("wb") as file:
        file.truncate(RESULT_BYTES)
    words = " ".join([*KERNEL_OPTIONS, *kernel_options])
    command = [*MACHINE, "-m", str(memory_mib), "-serial", f"file:{console}", "-append", words]
    command += ["-kernel", str(image.kernel), "-initrd", str(image.memory_disk)]
    # What the guest writes to its root goes with it.
    command += [*disk(image.root, "snapshot=on"), *disk(job, "readonly=on")]
    command += disk(result, "cache=unsafe")
    boot(command, console, seconds)
    return Outcome(console.read_text(errors="replace"), unpack_result(result))


def disk(path: Path, access: str) -> list[str]:
    return ["-drive", f"if=virtio,format=raw,{access},file={path}"]


def boot(command: Sequence[str], console: Path, seconds: float) -> None:
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as machine:
        try:
            code = machine.wait(seconds)
        except subprocess.TimeoutExpired:
            text = console.read_text(errors="replace")
            raise TimeoutError(f"the guest did not end within {seconds:g} s:\n{text}") from None
        finally:
            machine.kill()
    if code != 0:
        raise RuntimeError(f"the machine ended with exit code {code}: {' '.join(command)}")


def pack_job(to: Path, start: str) -> None:
    """Pack what to start and the checkout, with the native programs that were built in it."""
    script = to.with_name("start")
    script.write_text(start)
    with tarfile.open(to, "w") as archive:
        archive.add(script, "start")
        for name in CHECKOUT:
            archive.add(ROOT / name, f"atoll/{name}")


def unpack_result(path: Path) -> dict[str, bytes]:
    files = {}
    with tarfile.open(path) as archive:
        for member in archive:
            if content := archive.extractfile(member):
                files[member.name.removeprefix("./")] = content.read()
    return files
