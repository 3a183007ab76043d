"""A kernel over any engine's process: cells in, results out.

Whatever comes from the kernel may have been made up by the code it runs. So every message is checked: its
form, its number, and that it answers the one request that is outstanding. What is not so ends the kernel; it
can never be taken for the answer to something else.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import anyio

from atoll.engines.contract import KernelProcess, Sandbox
from atoll.errors import Conflict, InvalidRequest, Unavailable
from atoll.model.kernel import Bundle, Cell, CellError, CellStatus
from atoll.model.process import Output, describe_end
from atoll.model.sizes import MIB
from atoll_guest.frames import FrameDecoder, FrameError
from atoll_guest.messages import (
    TO_HOST,
    Message,
    MessageError,
    choose_version,
    decode_message,
    encode_message,
)

MAX_OUTPUT_BYTES = MIB
_CHUNK = 1 << 18
_HELLO_SECONDS = 30.0
# How long an interrupted cell may take to notice; then its kernel is killed.
_INTERRUPT_SECONDS = 1.0
_MOST_RESULTS = 1000


class Kernel:
    """An interpreter that keeps state between cells; one cell at a time."""

    def __init__(self, process: KernelProcess) -> None:
        self._process = process
        self._channel = process.channel
        self._decoder = FrameDecoder()
        self._messages: list[Message] = []
        self._seq = 0
        self._turn = anyio.Lock()
        self._violation = ""

    @classmethod
    async def open(cls, sandbox: Sandbox, env: Mapping[str, str] | None = None) -> Kernel:
        """Fork a kernel in a sandbox, wait for its hello, and add to its environment.

        Raises:
            Unsupported: the sandbox's template has no interpreter.
            Unavailable: the kernel ended before it was ready.
        """
        kernel = cls(await sandbox.fork_kernel())
        try:
            with anyio.fail_after(_HELLO_SECONDS):
                await kernel._greet(env or {})
        except BaseException as error:
            await kernel.close()
            if isinstance(error, TimeoutError):
                raise Unavailable("the kernel did not say hello; try again") from error
            raise
        return kernel

    @property
    def process(self) -> KernelProcess:
        """The kernel's process."""
        return self._process

    async def run(
        self,
        code: str,
        *,
        timeout: float | None = None,
        on_output: Callable[[Output], None] | None = None,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> Cell:
        """Run a cell to its end; cells asked for meanwhile wait.

        A timeout interrupts the cell, as Ctrl-C would; a cell that does not heed that loses its kernel. Cancelling
        this call does the same.

        Raises:
            Conflict: the kernel has ended.
        """
        if not isinstance(code, str):
            raise InvalidRequest(f"code has to be text, not {type(code).__name__}")
        async with self._turn:
            self._check_alive()
            call = _Call(on_output, max_output_bytes)
            await self._send({"type": "execute", "id": call.id, "code": code, "silent": False})
            try:
                with anyio.move_on_after(timeout) as patience:
                    await self._listen(call)
                if patience.cancelled_caught:
                    call.timed_out = True
                    await self._interrupt(call)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self._interrupt(call)
                raise
            return call.cell(self._death() if call.end is None else "")

    async def interrupt(self) -> None:
        """Interrupt the cell that runs, as Ctrl-C would; nothing happens if none does."""
        await self._process.signal(signal.SIGINT)

    async def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Ask the kernel something other than to run a cell: `ping`, `complete` or `inspect`."""
        async with self._turn:
            self._check_alive()
            call = _Call(None, MAX_OUTPUT_BYTES)
            await self._send({"type": kind, "id": call.id, **fields})
            await self._listen(call)
            if call.reply is None:
                raise Unavailable(f"the kernel did not answer: {self._death()}")
            return call.reply

    async def close(self) -> None:
        """End the kernel and all that it started; safe to call twice."""
        await self._process.close()

    # --- listening -----------------------------------------------------------------------------------------

    async def _greet(self, env: Mapping[str, str]) -> None:
        while not self._messages:
            await self._receive()
            if self.is_over:
                raise Unavailable(f"the kernel ended before it was ready: {self._death()}")
        hello = self._messages.pop(0)
        try:
            version = choose_version(hello.get("versions"))
        except MessageError as error:
            raise Unavailable(f"the kernel speaks another protocol: {error}") from error
        await self._send({"type": "welcome", "version": version, "env": dict(env)})

    async def _listen(self, call: _Call) -> None:
        """Take in what the kernel says and prints until the call has ended, or the kernel has."""
        while True:
            while self._messages:
                message = self._messages.pop(0)
                # All that was printed before a message was sent is there by now.
                call.take_output(self._process.take_output())
                if not self._accept(message, call):
                    return
                if call.is_over:
                    return
            call.take_output(self._process.take_output())
            if self.is_over:
                return
            await self._receive()

    def _accept(self, message: Message, call: _Call) -> bool:
        """Check one message and take it in; False ends the kernel."""
        if (
            message["type"] == "hello"
            or message["seq"] != self._seq + 1
            or message["id"] != call.id
        ):
            self._violation = (
                f"the kernel broke the protocol with a message of type {message['type']}"
            )
            return False
        self._seq += 1
        call.take(message)
        return True

    async def _receive(self) -> None:
        """Read what there is in the channel, or wait until there is something to read anywhere."""
        try:
            data = self._channel.recv(_CHUNK)
        except BlockingIOError:
            await self._process.wait_activity()
            return
        except OSError:
            data = b""
        if not data:
            await self._process.wait()
            return
        try:
            self._messages += [decode_message(frame, TO_HOST) for frame in self._decoder.feed(data)]
        except (FrameError, MessageError) as error:
            self._violation = f"the kernel broke the protocol: {error}"
            await self._process.kill()

    async def _interrupt(self, call: _Call) -> None:
        """Interrupt a cell; kill the kernel if it does not heed that."""
        await self._process.signal(signal.SIGINT)
        with anyio.move_on_after(_INTERRUPT_SECONDS):
            await self._listen(call)
        if not call.is_over:
            await self._process.kill()
            call.take_output(self._process.take_output())

    async def _send(self, message: Message) -> None:
        if message["type"] != "welcome":
            message["ack"] = self._seq
        try:
            view = memoryview(encode_message(message))
        except FrameError as error:
            raise InvalidRequest(f"the code is too long: {error}; put it into a file") from error
        while view:
            try:
                view = view[self._channel.send(view) :]
            except BlockingIOError:
                await anyio.wait_writable(self._channel)
            except OSError:
                # The end of the kernel is noticed, and explained, by whoever listens.
                return

    # --- ends ------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the kernel has ended, or has to."""
        return bool(self._violation) or self._process.end is not None

    def _check_alive(self) -> None:
        if self.is_over:
            raise Conflict(f"this kernel has ended: {self._death()}; open another")

    def _death(self) -> str:
        if self._violation:
            return self._violation
        end = self._process.end
        return "" if end is None else f"the kernel {describe_end(end)}"


class _Call:
    """One request, and what came of it so far."""

    def __init__(self, on_output: Callable[[Output], None] | None, max_output_bytes: int) -> None:
        self.id = secrets.token_hex(16)
        self.end: Message | None = None
        self.reply: dict[str, Any] | None = None
        self.timed_out = False
        self._on_output = on_output
        self._room = {"stdout": max_output_bytes, "stderr": max_output_bytes}
        self._printed = {"stdout": bytearray(), "stderr": bytearray()}
        self._truncated = False
        self._results: list[Bundle] = []
        self._error: CellError | None = None
        self._started = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether the kernel has said that it was the last word."""
        return self.end is not None or self.reply is not None

    def take(self, message: Message) -> None:
        """Take in a message."""
        match message["type"]:
            case "result" | "display" if len(self._results) < _MOST_RESULTS:
                bundle = Bundle(message["data"], message["metadata"], message["type"] == "result")
                self._results.append(bundle)
            case "error":
                lines = tuple(str(line) for line in message["traceback"])
                self._error = CellError(message["name"], message["value"], lines)
            case "end":
                self.end = message
            case "reply":
                self.reply = message["content"]
            case _:
                self._truncated = True

    def take_output(self, outputs: Any) -> None:
        """Take in what was printed; the head of each stream is kept."""
        for output in outputs:
            if self._on_output is not None:
                self._on_output(output)
            room = self._room[output.stream]
            self._printed[output.stream] += output.data[:room]
            self._room[output.stream] = max(0, room - len(output.data))
            self._truncated = self._truncated or len(output.data) > room

    def cell(self, death: str) -> Cell:
        """Return what came of a cell."""
        return Cell(
            status=self._status(),
            count=self.end["count"] if self.end else 0,
            results=tuple(self._results),
            stdout=self._printed["stdout"].decode("utf-8", "replace"),
            stderr=self._printed["stderr"].decode("utf-8", "replace"),
            truncated=self._truncated,
            error=self._error,
            duration=time.monotonic() - self._started,
            death=death,
        )

    def _status(self) -> CellStatus:
        if self.end is None:
            return CellStatus.DIED
        if self.timed_out and self.end["status"] != "ok":
            return CellStatus.TIMED_OUT
        return _STATUS.get(self.end["status"], CellStatus.ERROR)


_STATUS = {"ok": CellStatus.OK, "error": CellStatus.ERROR, "interrupted": CellStatus.INTERRUPTED}
