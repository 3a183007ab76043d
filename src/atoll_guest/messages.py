"""Frames to messages and back: the protocol between host and kernel, and its version.

The kernel says hello with the versions it speaks; the host answers with the one it chose. Then the host
asks, with an id that nobody can guess, and the kernel answers with messages that carry that id and a number
that grows by one. The host tells up to which number it has taken note; what it has not, the kernel keeps
and sends again when asked to resume. Printed text does not travel here but in the process's own output;
a mark in it shows where a display, or the clearing of all before it, belongs.

A silent cell is not counted.

Beyond what the tables ask for, a message may carry:

    welcome   env: names and values to add to the environment; acks: true if the host acknowledges while a cell runs;
              cwd: the directory to begin in
    input     eof: true if nobody is there to answer
    display   transient: what need not be saved, such as display_id; update: true if it replaces those of that id

Messages are JSON objects. Every one is checked against the table below, on both sides; nothing that comes
from inside is ever imported, called or unpickled. Standard library only.
"""

from __future__ import annotations

import json
from typing import Any, Dict

from atoll_guest.frames import encode_frame
from atoll_guest.own_builtins import use_own_builtins

use_own_builtins(globals())

VERSIONS = (1, 1)

Message = Dict[str, Any]

_TEXT, _NUMBER, _FLAG, _MAP, _LIST = str, int, bool, dict, list

# What each message has to hold. More is allowed, so that newer sides can speak to older ones.
TO_KERNEL: dict[str, dict[str, type]] = {
    "welcome": {"version": _NUMBER},
    "execute": {"id": _TEXT, "code": _TEXT, "silent": _FLAG},
    "input": {"id": _TEXT, "text": _TEXT},
    "complete": {"id": _TEXT, "code": _TEXT, "cursor": _NUMBER},
    "inspect": {"id": _TEXT, "code": _TEXT, "cursor": _NUMBER},
    "ping": {"id": _TEXT},
    "resume": {"seq": _NUMBER},
    "ack": {"seq": _NUMBER},
}
TO_HOST: dict[str, dict[str, type]] = {
    "hello": {"versions": _LIST, "language": _TEXT},
    "display": {"id": _TEXT, "seq": _NUMBER, "data": _MAP, "metadata": _MAP},
    "clear": {"id": _TEXT, "seq": _NUMBER, "wait": _FLAG},
    "result": {"id": _TEXT, "seq": _NUMBER, "data": _MAP, "metadata": _MAP},
    "error": {"id": _TEXT, "seq": _NUMBER, "name": _TEXT, "value": _TEXT, "traceback": _LIST},
    "input_request": {"id": _TEXT, "seq": _NUMBER, "prompt": _TEXT, "password": _FLAG},
    "reply": {"id": _TEXT, "seq": _NUMBER, "content": _MAP},
    "end": {"id": _TEXT, "seq": _NUMBER, "status": _TEXT, "count": _NUMBER},
}


_MOST_DEPTH = 64


class MessageError(ValueError):
    """The other side sent something that is no message of this protocol."""


def encode_message(message: Message) -> bytes:
    """Return a message as a frame; raise `TypeError` or `ValueError` for what is no JSON."""
    chunks = _ENCODER.iterencode(message, _one_shot=True)
    return encode_frame("".join(chunks).encode("utf-8", "surrogatepass"))


def decode_message(frame: bytes, table: dict[str, dict[str, type]]) -> Message:
    """Return the message in a frame, checked against a table; raise `MessageError` for anything else."""
    message = _decode(frame)
    if frame.count(b"[") + frame.count(b"{") > _MOST_DEPTH:
        _check_depth(message)
    if not isinstance(message, dict):
        raise MessageError("a message has to be an object")
    kind_of_message = message.get("type")
    fields = table.get(kind_of_message) if isinstance(kind_of_message, str) else None
    if fields is None:
        raise MessageError(f"unknown type {str(message.get('type'))[:40]!r}")
    for name, kind in fields.items():
        # A truth value is a number to Python, but not to us.
        if type(message.get(name)) is not kind:
            raise MessageError(f"{message['type']} has no {name} of type {kind.__name__}")
    return message


def _check_depth(value: Any) -> None:
    """Raise `MessageError` for what is nested so deeply that others would run out of stack over it."""
    layer = [value]
    for _ in range(_MOST_DEPTH):
        layer = [
            child
            for each in layer
            if isinstance(each, (dict, list))
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        if not layer:
            return
    raise MessageError(f"nested more than {_MOST_DEPTH} deep")


def choose_version(offered: Any) -> int:
    """Return the newest version that both sides speak; raise `MessageError` if there is none."""
    if (
        not isinstance(offered, list)
        or len(offered) != 2
        or not all(type(n) is int for n in offered)
    ):
        raise MessageError("hello has no range of versions")
    newest: int = min(VERSIONS[1], offered[1])
    if newest < max(VERSIONS[0], offered[0]):
        raise MessageError(f"no common version: {VERSIONS} here, {tuple(offered)} there")
    return newest


def mark(request_id: str, seq: int) -> bytes:
    """Return the bytes that stand in the output where message `seq` belongs."""
    return b"\x1e" + request_id.encode() + b":" + str(seq).encode() + b"\x1f"


def _decode(frame: bytes) -> Any:
    try:
        text = frame.decode("utf-8", "surrogatepass")
        value, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"not JSON: {error}") from None
    if end != len(text):
        raise MessageError("not JSON: more than one value")
    return value


def _refuse(constant: str) -> tuple[()]:
    raise ValueError(f"{constant} is not JSON")


# Made once: neither is made anew for every message, nor looked up in a module that a cell may have changed.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_refuse)
