"""Says and prints, as a cell, far more than the host should keep."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Callable

from tests.security.attacks.forge_frames import MOST, Forger, framed, send

ROOM = 4096  # for the rest of a message


def main(way: str) -> None:
    WAYS[way](Forger())


def show_large_values(forger: Forger) -> None:
    text = "x" * (MOST - ROOM)
    for _ in range(200):
        forger.say(data={"text/plain": text})


def show_small_values(forger: Forger) -> None:
    for _ in range(100_000):
        forger.say()


def show_many_names(forger: Forger) -> None:
    """Each of these frames takes many times its size once it is read."""
    whole = json.dumps(forger.message("display"))
    many = ",".join(["[]"] * ((MOST - ROOM) // 3))
    for _ in range(10):
        send(framed(whole.replace('"forged"', f"[{many}]").encode()))
        whole = json.dumps(forger.message("display"))


def replace_small_by_large_values(forger: Forger) -> None:
    names = [{"display_id": str(number)} for number in range(200)]
    for name in names:
        forger.say(transient=name)
    text = "x" * (MOST - ROOM)
    for name in names:
        forger.say(transient=name, update=True, data={"text/plain": text})


def fail_at_length(forger: Forger) -> None:
    lines = ["x" * 1000] * (MOST // 1100)
    for _ in range(100):
        forger.say(type="error", name="Forged", value="forged", traceback=lines)


def never_finish_a_frame(forger: Forger) -> None:
    send(struct.pack("<I", MOST))
    send(b" " * (MOST - 1))


def print_for_ever(forger: Forger) -> None:
    children = [
        subprocess.Popen(["head", "-c", str(256 << 20), "/dev/zero"], stderr=subprocess.DEVNULL)
        for _ in range(3)
    ]
    block = b"x" * (1 << 20)
    for _ in range(256):
        send(block, 1)
    for child in children:
        child.wait()


def print_and_show(forger: Forger) -> None:
    for _ in range(20_000):
        os.write(1, b"x" * 50_000)
        forger.say()


def print_marks(forger: Forger) -> None:
    """Each of them says that a display belongs there, which never comes."""
    mark = f"\x1e{forger.id}:{10**19}\x1f".encode()
    block = mark * 20_000
    for _ in range((1 << 30) // len(block)):
        send(block, 1)


def ask_for_ever(forger: Forger) -> None:
    """Asks for input, and never reads the answers."""
    question = {"prompt": "x" * 1000, "password": False}
    for _ in range(20_000):
        forger.say(type="input_request", **question)


WAYS: dict[str, Callable[[Forger], None]] = {
    way.__name__: way
    for way in (
        show_large_values, show_small_values, show_many_names, replace_small_by_large_values,
        fail_at_length, never_finish_a_frame, print_for_ever, print_and_show, print_marks,
        ask_for_ever,
    )
}  # fmt: skip
