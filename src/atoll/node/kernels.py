"""A kernel over any engine's process: cells in, results out."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import anyio

from atoll.engines.contract import KernelProcess, Sandbox
from atoll.errors import InvalidRequest, Unavailable
from atoll.model.ids import KernelId, new_kernel_id
from atoll.model.kernel import Cell, KernelInfo
from atoll.node.call import MAX_OUTPUT_BYTES, Call, Listener
from atoll.node.conversation import Conversation
from atoll.node.drivers import Control, Prompter, drive
from atoll.node.kernel_spool import KernelLabel, KernelSpool, SpooledRequest, Spools
from atoll.node.needs import Needs
from atoll.node.turns import Turns


class Kernel:
    """An interpreter that keeps state between cells; one cell at a time."""

    def __init__(self, process: KernelProcess, spool: KernelSpool | None = None) -> None:
        self.id: KernelId = new_kernel_id()
        self.process = process
        self.turns = Turns()
        self.control = Control(self.interrupt, process.kill)
        self._spool = spool
        self._conversation = Conversation(process, spool)

    @classmethod
    async def open(
        cls, sandbox: Sandbox, env: Mapping[str, str] | None = None, spools: Spools | None = None
    ) -> Kernel:
        """Fork a kernel in a sandbox, wait for its hello, and add to its environment.

        With `spools` another node can take it over.

        Raises:
            Unsupported: the sandbox's template has no interpreter.
            Unavailable: the kernel ended before it was ready, or what it says could not be kept.
        """
        process = sandbox.take_kernel() or await sandbox.fork_kernel()
        kernel = cls(process)
        try:
            if spools is not None:
                kernel = cls(process, spools.open(process))
            await drive(kernel.greet(env or {}), kernel.control)
        except BaseException:
            await kernel.close()
            raise
        return kernel

    def greet(self, env: Mapping[str, str]) -> Needs:
        """Return the conversation that a kernel begins with."""
        return self._conversation.greet(env)

    @property
    def is_over(self) -> bool:
        """Whether the kernel has ended, or has to."""
        return self._conversation.is_over

    @property
    def death(self) -> str:
        """Why the kernel ended; empty while it lives."""
        return self._conversation.death

    def info(self, *, is_main: bool) -> KernelInfo:
        """Return facts at this moment."""
        return KernelInfo(self.id, "python", is_main, self.turns.is_taken, self.is_over, self.death)

    async def run(
        self,
        code: str,
        *,
        timeout: float | None = None,
        listener: Listener | None = None,
        prompter: Prompter | None = None,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        execution: str = "",
    ) -> Cell:
        """Run a cell to its end; cells asked for meanwhile wait.

        A timeout interrupts the cell, as Ctrl-C would; a cell that does not heed that loses its kernel. Cancelling
        this call does the same.

        Raises:
            Conflict: the kernel has ended.
        """
        call = Call(listener, max_output_bytes)
        call.execution = execution
        needs = self.begin(call, code, timeout)
        async with self.turns:
            self._conversation.check_alive()
            try:
                await drive(needs, self.control, prompter)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await drive(self.give_up(call), self.control)
                raise
            return self.finish(call)

    async def resume(self, request: SpooledRequest, listener: Listener | None = None) -> Cell:
        """Go on with the request that another node made last, to its end."""
        call = Call(listener)
        async with self.turns:
            await drive(self._conversation.resume(call, request), self.control)
            return self.finish(call)

    async def rehearse(self) -> None:
        """Run a cell that leaves nothing behind, so that the first one finds everything warm."""
        async with self.turns:
            await drive(
                self._conversation.execute(Call(), "print()", 10, silent=True), self.control
            )

    async def interrupt(self) -> None:
        """Interrupt the cell that runs, as Ctrl-C would; nothing happens if none does."""
        if self.turns.is_taken:
            await self.process.signal(signal.SIGINT)

    async def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Ask the kernel something other than to run a cell: `ping`, `complete` or `inspect`."""
        call = Call()
        async with self.turns:
            self._conversation.check_alive()
            try:
                await drive(self._conversation.ask(call, kind, fields), self.control)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await drive(self.give_up(call), self.control)
                raise
        if call.reply is None:
            raise Unavailable(f"the kernel did not answer: {self.death}")
        return call.reply

    async def close(self) -> None:
        """End the kernel and all that it started; safe to call twice."""
        await self.process.close()
        self.forget_spool()

    def label(self, *, is_main: bool) -> None:
        """Write down which kernel this is, for whoever takes it over."""
        if self._spool is not None:
            self._spool.label(KernelLabel(self.id, is_main))

    def forget_spool(self) -> None:
        """Remove the files of a kernel that is no more; safe to call twice."""
        if self._spool is not None:
            self._spool.remove()

    # --- for whoever drives it elsewhere ---------------------------------------------------------------------

    def begin(self, call: Call, code: str, timeout: float | None) -> Needs:
        """Return the conversation that runs a cell, to be driven when it is one's turn."""
        if not isinstance(code, str):
            raise InvalidRequest(f"code has to be text, not {type(code).__name__}")
        if timeout is not None and not (isinstance(timeout, int | float) and timeout >= 0):
            raise InvalidRequest(f"timeout is {timeout!r}; it has to be seconds, or None")
        return self._conversation.execute(call, code, timeout)

    def give_up(self, call: Call) -> Needs:
        """Return the conversation that ends a cell for which nobody waits any more."""
        return self._conversation.interrupt(call)

    def finish(self, call: Call) -> Cell:
        """Return what came of a cell."""
        return call.cell(self.death if call.end is None else "")
