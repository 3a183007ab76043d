"""The kernel's end of its channel to the host: messages out, numbered and kept; messages in.

It works on a bare descriptor with functions that were looked up before any cell ran.
"""

from __future__ import annotations

from _signal import SIG_BLOCK as _SIG_BLOCK  # type: ignore[import-not-found]
from _signal import SIG_SETMASK as _SIG_SETMASK
from _signal import SIGALRM, SIGCHLD, SIGHUP, SIGPROF, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM
from _signal import pthread_sigmask as _mask
from _thread import RLock as _RLock
from collections import deque
from os import read as _read
from os import write as _write
from time import perf_counter as _now
from typing import Any, Callable

from atoll_guest.frames import MAX_FRAME_BYTES, FrameDecoder
from atoll_guest.looking import LOOKING_SECONDS, Looking, look_for
from atoll_guest.messages import TO_KERNEL, VERSIONS, Message, decode_message, encode_message
from atoll_guest.own_builtins import use_own_builtins

use_own_builtins(globals())

# Those that programs have functions for; SIGINT is seen to elsewhere.
_SIGNALS = (SIGALRM, SIGCHLD, SIGHUP, SIGPROF, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM)
# What may wait for the host's word that it took note.
_MOST_KEPT_BYTES = 32 << 20
# Most messages are short, and memory that was not written to is not copied.
_SHORT, _LONG = 4096, 1 << 20
# How long to look for the next request: until the one before has gone through a server, and its caller has asked again.
_LOOKING_SECONDS = 3 * LOOKING_SECONDS
# Room for the rest of a message around its longest part.
_MOST_TEXT = (MAX_FRAME_BYTES - 65536) // 8
_MOST_FORMS = MAX_FRAME_BYTES - 65536


def make_hello(language: str) -> bytes:
    """Return what a kernel says first."""
    return encode_message({"type": "hello", "versions": list(VERSIONS), "language": language})


class ChannelClosed(Exception):
    """The host, or a cell, closed the channel."""


class Channel:
    """Messages over a descriptor, all in answer to one `request`. Any thread may send; only the main one receives."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.acks = False
        self.request = ""
        self._decoder = FrameDecoder()
        self._arrived: deque[Message] = deque()
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._unsent: list[bytes] = []
        self._lock = _RLock()
        self._is_sending = False
        self._looking = Looking()
        self._seq = 0

    @property
    def has_to_wait(self) -> bool:
        """Whether so much is kept that the host has to take note before more is sent."""
        return self.acks and self._kept_bytes > _MOST_KEPT_BYTES

    def hello(self, language: str) -> None:
        """Say which versions and which language this kernel speaks."""
        self._write(make_hello(language))

    def send(self, message: Message, announce: Callable[[str, int], None] | None = None) -> bool:
        """Number a message, announce the number, and send all that was put off.

        Return False, and send nothing, if there is no request that it could belong to, or in the midst of sending:
        there, a function that a cell installed for a signal may have been called.
        """
        with self._lock:
            if not self.request or self._is_sending:
                return False
            before = self._begin_sending()
            try:
                self._number(message)
                if announce is not None:
                    announce(self.request, self._seq)
                self._flush()
            finally:
                self._end_sending(before)
            return True

    def send_last(self, message: Message, tidy: Callable[[], None]) -> None:
        """Send the last message of a request, then tidy up; no other thread can send one after it."""
        with self._lock:
            before = self._begin_sending()
            self._number(message)
            self._flush()
            self.request = ""
            tidy()
            try:
                self._end_sending(before)
            except Exception:  # noqa: BLE001, S110 - raised by a function that a cell installed for a signal
                pass

    def put_off(self, message: Message) -> None:
        """Number a message and send it with the next one, which follows soon."""
        with self._lock:
            before = self._begin_sending()
            try:
                self._number(message)
            finally:
                self._end_sending(before)

    def receive(self) -> Message:
        """Return the next request; raise `ChannelClosed` at the end."""
        if not self._arrived:
            self._await()
        return self._arrived.popleft()

    def _await(self) -> None:
        begun = _now()
        if self._looking.begin() and not self._is_there_soon():
            self._looking.missed()
        while not self._arrived:
            self._read()
        self._looking.came(_now() - begun)

    def receive_if(self, kind: str) -> Message | None:
        """Read once, which does not wait if there is something; return a message of this kind, if it was there."""
        self._read()
        for index, message in enumerate(self._arrived):
            if message["type"] == kind:
                del self._arrived[index]
                return message
        return None

    def _begin_sending(self) -> Any:
        """Let no signal come in between that a cell may have a function for; return what was blocked before."""
        while True:
            try:
                before = _mask(_SIG_BLOCK, _SIGNALS)
            except Exception:  # noqa: BLE001, S112 - raised by such a function
                continue
            self._is_sending = True
            return before

    def _end_sending(self, before: Any) -> None:
        self._is_sending = False
        _mask(_SIG_SETMASK, before)

    def _number(self, message: Message) -> None:
        frame = _encode_bounded({**message, "id": self.request, "seq": self._seq + 1})
        self._seq += 1
        self._kept.append((self._seq, frame))
        self._kept_bytes += len(frame)
        while self._kept_bytes > _MOST_KEPT_BYTES and not self.acks:
            self._forget_oldest()
        self._unsent.append(frame)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        self._write(unsent[0] if len(unsent) == 1 else b"".join(unsent))

    def _write(self, data: bytes) -> None:
        try:
            written = _write(self.descriptor, data)
            while written < len(data):
                written += _write(self.descriptor, memoryview(data)[written : written + _LONG])
        except OSError as error:
            raise ChannelClosed(str(error)) from None

    def _read(self) -> None:
        data = self._read_some(_SHORT if self._decoder.is_empty else _LONG)
        if not data:
            raise ChannelClosed("")
        for frame in self._decoder.feed(data):
            message = decode_message(frame, TO_KERNEL)
            self._take_note(message)
            if message["type"] not in ("ack", "resume"):
                self._arrived.append(message)

    def _is_there_soon(self) -> bool:
        """Look for something to read for a moment."""
        try:
            return look_for(self.descriptor, _LOOKING_SECONDS) > 0
        except Exception:  # noqa: BLE001 - raised by a function that a cell installed for a signal
            return True

    def _read_some(self, size: int) -> bytes:
        while True:
            try:
                return _read(self.descriptor, size)
            except Exception as error:  # noqa: BLE001 - see below
                if isinstance(error, OSError) and error.errno is not None:
                    raise ChannelClosed(str(error)) from None
                # Else it was raised by a function that a cell installed for a signal, and no cell runs.

    def _take_note(self, message: Message) -> None:
        """Forget what the host has; any message may tell."""
        seen = message.get("seq", message.get("ack"))
        if type(seen) is int:
            while self._kept and self._kept[0][0] <= seen:
                self._forget_oldest()
        if message["type"] == "resume":
            for _seq, frame in self._kept:
                self._write(frame)

    def _forget_oldest(self) -> None:
        self._kept_bytes -= len(self._kept.popleft()[1])


def _encode_bounded(message: Message) -> bytes:
    """Return the frame; what is too large, or no JSON, is cut or becomes a note that says so."""
    try:
        return encode_message(message)
    except (TypeError, ValueError, RecursionError, MemoryError) as error:
        note = f"(left out: {type(error).__name__}: {str(error)[:200]})"
    if "data" in message:
        data = _cut_data(message["data"], note)
        # What is said of forms may be what cannot be sent.
        return encode_message({**message, "data": data, "metadata": {}})
    if "traceback" in message:
        value = message["value"][:_MOST_TEXT]
        return encode_message({**message, "value": value, "traceback": [note]})
    return encode_message({**message, "content": {"error": note}})


def _cut_data(data: Message, note: str) -> Message:
    """Return what can be sent of a value: its text, or the beginning of that, and those other forms that fit beside it."""
    text = data.get("text/plain")
    kept: Message = {}
    left_out = []
    room = _MOST_FORMS - (min(len(text), _MOST_TEXT) * 6 if isinstance(text, str) else 0)
    for kind, size in sorted(_sizes(data), key=lambda each: each[1]):
        if size <= room:
            kept[kind] = data[kind]
            room -= size
        else:
            left_out.append(kind)
    return {**kept, "text/plain": _explain(text, left_out, note)}


def _sizes(data: Message) -> list[tuple[str, int]]:
    """Return how much each form takes; more than there is room for if it cannot be sent at all."""
    sizes = []
    for kind, value in data.items():
        if kind != "text/plain":
            try:
                sizes.append((kind, len(encode_message({"form": value}))))
            except (TypeError, ValueError, RecursionError, MemoryError):
                sizes.append((kind, MAX_FRAME_BYTES))
    return sizes


def _explain(text: Any, left_out: list[str], note: str) -> str:
    if not isinstance(text, str):
        return note
    shown = text[:_MOST_TEXT]
    if len(text) > _MOST_TEXT:
        shown += f"\n(cut: {len(text)} characters in all)"
    if not left_out:
        return shown
    return f"{shown}\n(left out: {', '.join(left_out)}: too large to be shown; write it to a file)"
