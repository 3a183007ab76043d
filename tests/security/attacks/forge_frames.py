"""Takes over its kernel's channel, and every other descriptor, and says there what no kernel would say.

Runs as a cell, in the kernel's own process; the first cell of a kernel, so that the numbers are known.
"""

from __future__ import annotations

import functools
import json
import os
import random
import re
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

MOST = 8 << 20
ID = re.compile("[0-9a-f]{32}")


class Forger:
    """Speaks as the kernel would, and can count; what it says is up to the ways below."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.id = own_request()
        self.seq = 0

    def message(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Return a message that is right in form, number and id, unless told otherwise."""
        self.seq += 1
        whole = {"type": kind, "id": self.id, "seq": self.seq, **FIELDS.get(kind, {})}
        return {**whole, **fields}

    def say(self, **fields: Any) -> None:
        """Send a display that is right, but for some fields."""
        send(encode(self.message("display", **fields)))


FIELDS: dict[str, dict[str, Any]] = {
    "display": {"data": {"text/plain": "forged"}, "metadata": {}},
    "result": {"data": {"text/plain": "forged"}, "metadata": {}},
    "error": {"name": "Forged", "value": "forged", "traceback": ["forged"]},
    "input_request": {"prompt": "forged", "password": False},
    "reply": {"content": {"forged": True}},
    "end": {"status": "ok", "count": 1},
    "hello": {"versions": [1, 1], "language": "python"},
    "execute": {"code": "1", "silent": False},
}


def main(way: str, seed: int, frames: int) -> None:
    forger = Forger(seed)
    for _ in range(forger.rng.randrange(frames)):
        forger.say()
    for _ in range(frames):
        WAYS[way](forger)
    forger.rng.choices([leave, vanish, stay], [6, 3, 1])[0]()


def own_request() -> str:
    """Return the id of the request that this cell answers, from what the kernel's frames hold."""
    for value in reachable():
        if isinstance(value, str) and ID.fullmatch(value):
            return value
    raise LookupError("the kernel hides its request")


def reachable() -> Iterator[Any]:
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        for value in list(frame.f_locals.values()):
            yield value
            yield from list(value.values()) if isinstance(value, dict) else ()
            yield from list(getattr(value, "__dict__", {}).values())


def encode(message: Any) -> bytes:
    return framed(json.dumps(message, separators=(",", ":")).encode())


def framed(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


@functools.cache
def channel() -> int:
    """Return the descriptor of the kernel's channel: the one socket that a fresh kernel has."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                return int(name)
    raise LookupError("the kernel hides its channel")


def send(data: bytes, fd: int | None = None) -> None:
    fd = channel() if fd is None else fd
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            time.sleep(0.001)
        except OSError:
            return


# --- how it ends ------------------------------------------------------------------------------------------


def leave() -> None:
    """Return, so that the kernel speaks again, too."""


def vanish() -> None:
    os._exit(0)


def stay() -> None:
    while True:
        time.sleep(60)


# --- ways -------------------------------------------------------------------------------------------------


def say_junk(forger: Forger) -> None:
    send(forger.rng.randbytes(forger.rng.randrange(1, 5000)))


def say_junk_everywhere(forger: Forger) -> None:
    for name in os.listdir("/proc/self/fd"):
        try:
            os.set_blocking(int(name), False)
            os.write(int(name), forger.rng.randbytes(1000))
        except OSError:
            continue


def say_framed_junk(forger: Forger) -> None:
    send(framed(forger.rng.randbytes(forger.rng.randrange(1, 500))))


def say_other_json(forger: Forger) -> None:
    texts = [
        "null",
        "[]",
        "1",
        '"display"',
        "{}",
        '{"type":[]}',
        '{"type":{}}',
        "[" * 9,
        "NaN",
        " ",
    ]
    send(framed(forger.rng.choice(texts).encode()))


def mistake_numbers(forger: Forger) -> None:
    forger.say(
        seq=forger.rng.choice([0, -1, 1, forger.seq + 2, 2**63, 10**4000, True, 1.0, "1", None])
    )


def mistake_ids(forger: Forger) -> None:
    other = f"{forger.rng.getrandbits(128):032x}"
    forger.say(
        id=forger.rng.choice([other, "", forger.id.upper(), forger.id + " ", None, 0, [forger.id]])
    )


def mistake_types(forger: Forger) -> None:
    kind = forger.rng.choice(sorted(FIELDS))
    values: list[Any] = [
        None,
        True,
        0,
        -1,
        1e308,
        "",
        "x" * 1000,
        [],
        {},
        [[]],
        {"": {}},
        [None],
        {"a": [1]},
    ]
    fields = {name: forger.rng.choice(values) for name in FIELDS[kind] if forger.rng.random() < 0.7}
    send(encode(forger.message(kind, **fields)))


def leave_fields_out(forger: Forger) -> None:
    message = forger.message(forger.rng.choice(sorted(FIELDS)))
    del message[forger.rng.choice(sorted(message))]
    send(encode(message))


def name_unknown_types(forger: Forger) -> None:
    kinds = ["", "Display", "execute", "welcome", "__class__", "x" * 100000, "\0", "\ud800"]
    forger.say(type=forger.rng.choice(kinds))


def say_hello_again(forger: Forger) -> None:
    versions: list[Any] = [[1, 1], [0, 9], [1], [], ["1", "1"], [True, True], [2**70, -1]]
    send(encode({"type": "hello", "language": "python", "versions": forger.rng.choice(versions)}))


def replay(forger: Forger) -> None:
    send(encode(forger.message("display")) * 2)


def shuffle(forger: Forger) -> None:
    frames = [encode(forger.message(forger.rng.choice(["display", "result"]))) for _ in range(5)]
    forger.rng.shuffle(frames)
    send(b"".join(frames))


def answer_oneself(forger: Forger) -> None:
    send(encode(forger.message("result")) + encode(forger.message("end")))


def answer_another_question(forger: Forger) -> None:
    send(encode(forger.message("reply")))


def end_early_and_go_on(forger: Forger) -> None:
    send(encode(forger.message("end")) + encode(forger.message("result")))
    send(encode(forger.message("end", id="")) + encode(forger.message("end")))


def flip_bits(forger: Forger) -> None:
    frame = bytearray(encode(forger.message(forger.rng.choice(sorted(FIELDS)))))
    for _ in range(forger.rng.randrange(1, 6)):
        frame[forger.rng.randrange(4, len(frame))] ^= 1 << forger.rng.randrange(8)
    send(bytes(frame))


def nest(forger: Forger) -> None:
    depth = forger.rng.choice([50, 63, 64, 65, 200, forger.rng.randrange(800, 1000), 10**5, 10**6])
    send_nested(forger, forger.rng.choice(["display", "error", "reply"]), depth)


def nest_deeply(forger: Forger) -> None:
    send_nested(forger, "display", 500)


def send_nested(forger: Forger, kind: str, depth: int) -> None:
    opening, closing = forger.rng.choice([("[", "]"), ('{"a":', "}")])
    deep = opening * depth + "1" + closing * depth
    whole = json.dumps(forger.message(kind), separators=(",", ":"))
    shallow = '"forged"]' if kind == "error" else "true" if kind == "reply" else '"forged"'
    put = f"{deep}]" if kind == "error" else deep
    send(framed(whole.replace(shallow, put).encode()))


def say_strange_values(forger: Forger) -> None:
    values = [
        "1e999",
        "-1e999",
        "1" * 4000,
        "1" * 5000,
        '"\\ud800"',
        '"\\u0000"',
        "1E+400",
        "-0.0",
        "NaN",
    ]
    whole = json.dumps(forger.message(forger.rng.choice(["display", "end"])))
    part = '"forged"' if '"forged"' in whole else '"count": 1'
    value = forger.rng.choice(values)
    put = value if part == '"forged"' else f'"count": {value}'
    send(framed(whole.replace(part, put).encode("utf-8", "surrogatepass")))


def claim_too_much(forger: Forger) -> None:
    length = forger.rng.choice([0, MOST + 1, 2**31, 2**32 - 1])
    send(struct.pack("<I", length) + b"{}")


def promise_more(forger: Forger) -> None:
    send(struct.pack("<I", forger.rng.randrange(100, MOST)) + b'{"type":')


def cut_short(forger: Forger) -> None:
    frame = encode(forger.message("display"))
    send(frame[: forger.rng.randrange(1, len(frame))])


def say_much(forger: Forger) -> None:
    size = forger.rng.randrange(1 << 16, 1 << 20)
    kind = forger.rng.choice(["display", "result", "error"])
    large = {"traceback": ["x" * size]} if kind == "error" else {"data": {"text/plain": "x" * size}}
    send(encode(forger.message(kind, **large)))


def forge_marks(forger: Forger) -> None:
    for number in (0, 1, -1, forger.seq, 2**70):
        mark = f"\x1e{forger.id}:{number}\x1f".encode()
        send(mark[: forger.rng.randrange(1, len(mark) + 1)], forger.rng.choice([1, 2]))


def ask_for_input(forger: Forger) -> None:
    send(encode(forger.message("input_request")))


def fall_silent(forger: Forger) -> None:
    for fd in forger.rng.choice([(channel(),), (1, 2), (1, 2, channel())]):
        try:
            os.close(fd)
        except OSError:
            continue


def speak_through_children(forger: Forger) -> None:
    frame = encode(forger.message("display"))
    program = f"import os; os.write({channel()}, {frame!r}); os.write(1, b'child')"
    subprocess.Popen([sys.executable, "-S", "-c", program], pass_fds=[channel()])


WAYS: dict[str, Callable[[Forger], None]] = {
    way.__name__: way
    for way in (
        say_junk, say_junk_everywhere, say_framed_junk, say_other_json, mistake_numbers, mistake_ids,
        mistake_types, leave_fields_out, name_unknown_types, say_hello_again, replay, shuffle, answer_oneself, answer_another_question,
        end_early_and_go_on, flip_bits, nest, nest_deeply, say_strange_values, claim_too_much, promise_more, cut_short,
        say_much, forge_marks, ask_for_input, fall_silent, speak_through_children,
    )
}  # fmt: skip
