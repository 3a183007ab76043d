"""What is said between host and kernel, without any waiting.

Whoever talks to a kernel may be a task of the node, a thread that has nothing else to do, or another event loop. So
a conversation is a generator: it yields what it needs (a descriptor to be ready, the process to be signalled or
killed, an answer to a question) and is driven by whoever is there; see `drivers`.

Whatever comes from the kernel may have been made up by the code it runs. So every message is checked: its form, its
number, and that it answers the one request that is outstanding. What is not so ends the kernel; it can never be
taken for the answer to something else.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from atoll.engines.contract import KernelProcess
from atoll.errors import Conflict, InvalidRequest, Unavailable
from atoll.model.process import describe_end
from atoll.node.call import Call
from atoll.node.elbow_room import ElbowRoom
from atoll.node.kernel_spool import MOST_SAID_BYTES, KernelSpool, SpooledRequest
from atoll.node.needs import Answer, Asked, Insisted, Interrupted, Killed, Needs, Ready
from atoll_guest.frames import FrameDecoder, FrameError
from atoll_guest.looking import Looking
from atoll_guest.messages import (
    TO_HOST,
    Message,
    MessageError,
    choose_version,
    decode_message,
    encode_message,
)

_VALUE_BYTES = 32
# Most messages are short, and a large buffer takes longer to get than to fill.
_SHORT, _LONG = 1 << 12, 1 << 18
_HELLO_SECONDS = 30.0
# How long an interrupted cell may take to notice. Then it is interrupted again, as the first may have come before the
# kernel had begun with it; and then its kernel is killed.
_INTERRUPT_SECONDS = (0.3, 1.0)
# How long one may take that is ended by force before: not sooner, as an interpreter that is only slow does not survive that.
_INSIST_SECONDS = 1.0
# As many as come before any force.
_PLAIN_INTERRUPTS = 2
# How long to wait for room on a full disk, before looking again.
_FULL_SECONDS = 0.25
_LONGEST_WORDS = 200
# What may be taken of one kernel's words before others get their turn: it may say them faster than they are read. A message
# takes as long as so many bytes, whatever it holds.
_BYTES_AT_ONCE, _MESSAGE_BYTES = 64 << 10, 1 << 10
# How long a kernel whose channel has ended may take to end itself.
_END_SECONDS = 1.0
# How long a cell is listened to whose time was up while no node was there: it may have ended long before.
_LATE_SECONDS = 0.5
# What may not be said in answer to a request, by the last word that it asks for.
_OUT_OF_PLACE = {"end": frozenset({"hello", "reply"}), "reply": frozenset({"hello", "end"})}


class Conversation:
    """All that is said with one kernel; one request at a time."""

    def __init__(
        self, process: KernelProcess, spool: KernelSpool | None = None, *, insists: bool = False
    ) -> None:
        self._process = process
        self._patience = (_INSIST_SECONDS,) if insists else ()
        self._spool = spool
        self._hear = process.channel.recv if spool is None else spool.receive
        self._read_output = process.take_output if spool is None else spool.take_output
        self._decoder = FrameDecoder()
        self._received: deque[tuple[Message, int]] = deque()
        self._seq = 0
        self._ended = False  # the channel
        self._violation = ""
        self._has_waited = False
        self._asked = 0.0
        self._answered = 0.0
        self._looking = Looking()
        self._room = ElbowRoom()

    @property
    def is_over(self) -> bool:
        """Whether the kernel has ended, or has to."""
        return bool(self._violation) or self._process.end is not None

    @property
    def death(self) -> str:
        """Why the kernel ended; empty while it lives."""
        if self._violation:
            return self._violation
        end = self._process.end
        return "" if end is None else f"the kernel {describe_end(end)}"

    def check_alive(self) -> None:
        """Raise `Conflict` if the kernel has ended."""
        if self.is_over:
            raise Conflict(f"this kernel has ended: {self.death}; open another")

    # --- what can be said ------------------------------------------------------------------------------------

    def greet(self, env: Mapping[str, str], cwd: str | None = None) -> Needs:
        """Take in the kernel's hello, add to its environment, and let it begin in a directory of the workspace."""
        deadline = time.monotonic() + _HELLO_SECONDS
        while not self._received:
            yield from self._receive(deadline)
            if self.is_over:
                raise Unavailable(
                    f"the kernel ended before it was ready: {self.death}{self._last_words()}"
                )
            if self._spool is not None and self._spool.is_held_up:
                raise Unavailable(
                    "the kernel cannot be heard: there is no room in the data directory"
                )
            if time.monotonic() > deadline:
                raise Unavailable("the kernel did not say hello; try again")
        hello, _size = self._received.popleft()
        try:
            version = choose_version(hello.get("versions"))
        except MessageError as error:
            raise Unavailable(f"the kernel speaks another protocol: {error}") from error
        welcome: dict[str, Any] = {"type": "welcome", "version": version, "env": dict(env)}
        if cwd is not None:
            welcome["cwd"] = cwd
        yield from self._send(_encode(welcome))
        if self._spool is not None:
            self._spool.begin(SpooledRequest(seq=self._seq))

    def _last_words(self) -> str:
        """Return what it printed at last, as far as it explains anything."""
        text = b"".join(each.data for each in self._read_output()).decode("utf-8", "replace")
        lines = text.strip().splitlines()
        return f"; it said {lines[-1][:_LONGEST_WORDS]!r}" if lines else ""

    def execute(
        self, call: Call, code: str, timeout: float | None, *, silent: bool = False
    ) -> Needs:
        """Run a cell to its end, its timeout or the end of the kernel; a silent one is not counted."""
        deadline = None if timeout is None else time.monotonic() + timeout
        yield from self._ask(call, {"type": "execute", "code": code, "silent": silent}, deadline)
        yield from self._listen(call, deadline)
        if self._goes_on(call):
            call.timed_out = True
            yield from self.interrupt(call)

    def ask(self, call: Call, kind: str, fields: Mapping[str, Any]) -> Needs:
        """Ask the kernel something other than to run a cell."""
        call.last_word = "reply"
        yield from self._ask(call, {"type": kind, **fields})
        yield from self._listen(call, None)

    def resume(self, call: Call, request: SpooledRequest) -> Needs:
        """Go on with what another node asked for: what the kernel has said since is heard again."""
        call.id, call.last_word = request.call, request.last_word
        self._seq = request.seq
        if not request.call:
            return
        assert self._spool is not None
        call.was_asked = True
        deadline = request.deadline
        if deadline is not None:
            deadline = max(deadline, time.monotonic() + _LATE_SECONDS)
        yield from self._push(self._spool.send, deadline)
        yield from self._listen(call, deadline)
        if self._goes_on(call):
            call.timed_out = True
            yield from self.interrupt(call)

    def interrupt(self, call: Call) -> Needs:
        """Interrupt what was asked for; kill the kernel if it does not heed that."""
        if not call.was_asked or not self._goes_on(call):
            return
        begun = time.monotonic()
        for turn, patience in enumerate((*_INTERRUPT_SECONDS, *self._patience)):
            yield Insisted() if turn >= _PLAIN_INTERRUPTS else Interrupted()
            yield from self._listen(call, begun + patience)
            if not self._goes_on(call):
                return
        yield Killed()
        self._take_output(call)

    def _goes_on(self, call: Call) -> bool:
        return not call.is_over and not self.is_over

    # --- saying and listening ----------------------------------------------------------------------------------

    def _ask(self, call: Call, message: Message, deadline: float | None = None) -> Needs:
        frame = _encode({**message, "id": call.id, "ack": self._seq})
        call.was_asked = True
        if self._spool is None:
            yield from self._send(frame, deadline)
        else:
            request = SpooledRequest(call.id, self._seq, call.last_word, call.execution, deadline)
            self._spool.begin(request, frame)
            yield from self._push(self._spool.send, deadline)
        self._asked = time.monotonic()
        is_brisk = self._looking.begin(self._asked - self._answered)
        soon = self._process.channel.fileno() if is_brisk else None
        yield Asked(soon, self._room)

    def _listen(self, call: Call, deadline: float | None) -> Needs:
        """Take in what the kernel says and prints until the call has ended, the kernel has, or time is up."""
        taken = 0
        while True:
            while self._received:
                if taken > _BYTES_AT_ONCE:
                    taken = 0
                    # Before the next is taken: whoever gives the cell up now listens on from there.
                    yield Asked(None, self._room)
                message, size = self._received.popleft()
                taken += _MESSAGE_BYTES + size
                # All that was printed before a message was sent is there by now.
                self._take_output(call)
                if not self._is_in_order(message, call):
                    self._violation = (
                        f"the kernel broke the protocol with a message of type {message['type']}"
                    )
                    yield Killed()
                    return
                self._seq += 1
                call.take(message, size)
                if self._spool is not None and self._spool.is_overfull:
                    self._violation = (
                        f"the cell displayed more than {MOST_SAID_BYTES >> 20} MiB;"
                        " write such things to files instead"
                    )
                    yield Killed()
                    return
                if call.is_over:
                    self._take_time()
                    return
                if message["type"] == "input_request":
                    yield from self._answer(call, message, deadline)
            if self._ended and self.is_over:
                self._take_output(call)
                return
            if deadline is not None and time.monotonic() > deadline:
                return
            yield from self._receive(deadline, call)

    def _answer(self, call: Call, message: Message, deadline: float | None) -> Needs:
        text = yield Answer(message["prompt"], message["password"])
        answer = {"type": "input", "id": call.id, "text": text or "", "eof": text is None}
        yield from self._send(_encode(answer), deadline)

    def _take_time(self) -> None:
        """Take note of how long the answer took."""
        self._answered = time.monotonic()
        self._looking.came(self._answered - self._asked)

    def _is_in_order(self, message: Message, call: Call) -> bool:
        if message["type"] in _OUT_OF_PLACE[call.last_word]:
            return False
        return bool(message["seq"] == self._seq + 1 and message["id"] == call.id)

    def _take_output(self, call: Call) -> None:
        for output in self._read_output():
            call.take_output(output)

    def _receive(self, deadline: float | None, call: Call | None = None) -> Needs:
        """Read what there is in the channel, or wait until there is something to read anywhere."""
        try:
            size = _SHORT if self._decoder.is_empty else _LONG
            data = b"" if self._ended else self._hear(size)
        except BlockingIOError:
            yield from self._await_more(deadline, call)
            return
        except OSError:
            data = b""
        self._has_waited = False
        if not data:
            yield from self._await_end(call)
            return
        try:
            for frame in self._decoder.feed(data):
                self._received.append((decode_message(frame, TO_HOST), _weigh(frame)))
        except (FrameError, MessageError) as error:
            self._violation = f"the kernel broke the protocol: {error}"
            self._ended = True
            yield Killed()

    def _await_more(self, deadline: float | None, call: Call | None) -> Needs:
        """Wait until there is something to read anywhere."""
        self._looking.missed()
        # Only one that woke up looks for other reasons than the channel: looking costs as much as all else here.
        if self._has_waited and call is not None:
            self._take_output(call)
        if self._spool is not None and self._spool.is_held_up:
            soon = time.monotonic() + _FULL_SECONDS
            yield Ready(self._spool.nothing, soon if deadline is None else min(soon, deadline))
        elif self._has_waited and self._process.end is not None:
            self._ended = True  # nothing more will come
        else:
            self._has_waited = True
            yield Ready(self._process.activity, deadline)

    def _await_end(self, call: Call | None) -> Needs:
        """The channel has ended, and so has the kernel, or it has to."""
        self._ended = True
        deadline = time.monotonic() + _END_SECONDS
        while self._process.end is None:
            if time.monotonic() > deadline:
                self._violation = "the kernel closed its channel"
                yield Killed()
                return
            if call is not None:
                self._take_output(call)
            yield Ready(self._process.ending, deadline)

    def _send(self, frame: bytes, deadline: float | None = None) -> Needs:
        view, channel = memoryview(frame), self._process.channel

        def send() -> bool:
            nonlocal view
            view = view[channel.send(view) :]
            return bool(view)

        yield from self._push(send, deadline)

    def _push(self, send: Callable[[], bool], deadline: float | None) -> Needs:
        """Have something sent, which `send` does in part and says whether some is left."""
        channel = self._process.channel
        while True:
            try:
                if not send():
                    return
            except BlockingIOError:
                yield Ready(channel.fileno(), deadline, to_write=True)
                if deadline is not None and time.monotonic() > deadline:
                    # Half a frame has been said; nothing can be said after it.
                    self._violation = "the kernel did not read what it was asked"
                    yield Killed()
                    return
            except OSError:
                # The end of the kernel is noticed, and explained, by whoever listens.
                return


def _weigh(frame: bytes) -> int:
    """Return about how many bytes a frame takes once it is read: every value in it is an object of Python's."""
    return len(frame) + _VALUE_BYTES * (frame.count(b",") + frame.count(b"[") + frame.count(b"{"))


def _encode(message: Message) -> bytes:
    try:
        return encode_message(message)
    except FrameError as error:
        raise InvalidRequest(f"the code is too long: {error}; put it into a file") from error
