"""A kernel over any engine's process: cells in, results out."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import anyio

from atoll.engines.contract import KernelProcess, Sandbox
from atoll.errors import InvalidRequest, Unavailable, Unsupported
from atoll.model.cell_events import MAX_OUTPUT_BYTES
from atoll.model.ids import KernelId, new_kernel_id
from atoll.model.kernel import Cell, KernelInfo
from atoll.model.language import PYTHON, Language, find_kernel_language
from atoll.model.process import Command
from atoll.node.call import Call, Listener
from atoll.node.conversation import Conversation
from atoll.node.drivers import Control, Prompter, drive, drive_now
from atoll.node.kernel_spool import KernelLabel, KernelSpool, SpooledRequest, Spools
from atoll.node.needs import Need, Needs
from atoll.node.shell_ends import explain_shell_error
from atoll.node.turns import Turns

_NOT_FOUND = 127
# Two that come at once are one.
_BETWEEN_INTERRUPTS_SECONDS = 0.02
_SHELL = "bash"


class Kernel:
    """An interpreter that keeps state between cells; one cell at a time."""

    def __init__(
        self,
        process: KernelProcess,
        spool: KernelSpool | None = None,
        language: str = PYTHON.name,
    ) -> None:
        self.id: KernelId = new_kernel_id()
        self.language = language
        self.is_warm = True  # a copy of a warmed interpreter
        self.process = process
        self.turns = Turns()
        self.executing = ""  # the execution whose cell runs, if it is one's
        self.control = Control(self.interrupt, self.insist, process.kill)
        self._spool = spool
        insists = find_kernel_language(language).interrupts > 1
        self._conversation = Conversation(process, spool, insists=insists)

    @classmethod
    async def open(
        cls,
        sandbox: Sandbox,
        env: Mapping[str, str] | None = None,
        spools: Spools | None = None,
        language: Language = PYTHON,
        cwd: str | None = None,
    ) -> Kernel:
        """Open a kernel in a sandbox, wait for its hello, and add to its environment.

        With `spools` another node can take it over. It is forked where the template has a warm interpreter of its language,
        and else a program that has to be started first.

        Raises:
            Unsupported: the sandbox has no interpreter of that language, or one that cannot be a kernel.
            Unavailable: the kernel ended before it was ready, or what it says could not be kept.
        """
        process = await _start(sandbox, language)
        kernel = cls(process, language=language.name)
        try:
            if spools is not None:
                kernel = cls(process, spools.open(process), language.name)
            kernel.is_warm = language.name == sandbox.warm_language
            await drive(kernel.greet(env or {}, cwd), kernel.control)
        except BaseException as error:
            await kernel.close()
            if isinstance(error, Unavailable) and _is_missing(process):
                raise _missing(language.interpreter, language) from error
            if isinstance(error, Unavailable) and not kernel.is_warm and _gave_up(process):
                raise _unfit(error.message, language) from error
            raise
        return kernel

    def greet(self, env: Mapping[str, str], cwd: str | None = None) -> Needs:
        """Return the conversation that a kernel begins with."""
        return self._conversation.greet(env, cwd)

    @property
    def is_over(self) -> bool:
        """Whether the kernel has ended, or has to."""
        return self._conversation.is_over

    @property
    def death(self) -> str:
        """Why the kernel ended; empty while it lives."""
        return self._conversation.death

    def check_alive(self) -> None:
        """Raise `Conflict` if the kernel has ended."""
        self._conversation.check_alive()

    def info(self, *, is_main: bool) -> KernelInfo:
        """Return facts at this moment."""
        return KernelInfo(
            self.id,
            self.language,
            is_main,
            self.turns.is_taken,
            self.is_over,
            self.death,
            self.is_warm,
        )

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
        with CellRun(self, call, self.begin(call, code, timeout)) as run:
            return await run.finish(prompter)

    async def rehearse(self) -> None:
        """Run a cell that leaves nothing behind, so that the first one finds everything warm."""
        async with self.turns:
            code = find_kernel_language(self.language).rehearsal
            await drive(self._conversation.execute(Call(), code, 10, silent=True), self.control)

    async def interrupt(self) -> None:
        """Interrupt the cell that runs, as Ctrl-C would; nothing happens if none does."""
        if self.turns.is_taken:
            await self.process.signal(signal.SIGINT)

    async def insist(self) -> None:
        """Interrupt a cell that did not heed that, as often as makes its interpreter end what never looks up."""
        for _ in range(find_kernel_language(self.language).interrupts):
            await self.interrupt()
            await anyio.sleep(_BETWEEN_INTERRUPTS_SECONDS)

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
            self._spool.label(KernelLabel(self.id, is_main, self.language))

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
        return self._conversation.execute(self._explaining(call), code, timeout)

    def _explaining(self, call: Call) -> Call:
        """Return the call, with whatever this kernel's language cannot know of its errors."""
        if self.language == _SHELL:
            call.explain = lambda error: explain_shell_error(error, self.process.explain)
        return call

    def resume(self, call: Call, request: SpooledRequest) -> Needs:
        """Return the conversation that goes on with the request that another node made last, to its end."""
        return self._conversation.resume(self._explaining(call), request)

    def give_up(self, call: Call) -> Needs:
        """Return the conversation that ends a cell for which nobody waits any more."""
        return self._conversation.interrupt(call)

    def finish(self, call: Call) -> Cell:
        """Return what came of a cell."""
        return call.cell(self.death if call.end is None else "")


class CellRun:
    """One cell in a kernel: begun at once if that can be, and brought to its end by whoever may wait.

    Once it has its turn it keeps that until it is closed: what came of it can be written down before another cell begins, which
    takes its place in all that a next node finds of the kernel.
    """

    def __init__(
        self, kernel: Kernel, call: Call, needs: Needs, *, is_resumed: bool = False
    ) -> None:
        """Take the conversation that runs the cell, or goes on with one that another node began."""
        self._kernel = kernel
        self._call = call
        self._needs = needs
        self._need: Need | None = None
        self._is_resumed = is_resumed
        self._has_turn = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the next cell have its turn; safe to call twice."""
        if self._has_turn:
            self._has_turn = False
            self._kernel.executing = ""
            self._kernel.turns.give_up()

    def try_now(self, *, may_look: bool) -> Cell | None:
        """Ask the kernel, which was found alive, if it is free, and return what came of it if that comes within a moment.

        Else nothing has happened, or it goes on with `finish`. With `may_look` this thread looks out for the answer meanwhile.

        Raises:
            Unavailable: it cannot be written down that the kernel is asked; the kernel has heard nothing.
        """
        kernel = self._kernel
        if not kernel.turns.take_if_free():
            return None
        self._has_turn = True
        kernel.executing = self._call.execution
        self._need = drive_now(self._needs, may_look=may_look)
        return kernel.finish(self._call) if self._need is None else None

    async def finish(self, prompter: Prompter | None = None) -> Cell:
        """Return what came of it, once it has had its turn; cancelling interrupts it. Errors as `Kernel.run`."""
        kernel = self._kernel
        if not self._has_turn:
            await kernel.turns.__aenter__()
            self._has_turn = True
            kernel.executing = self._call.execution
            if not self._is_resumed:
                kernel.check_alive()
        try:
            await drive(self._needs, kernel.control, prompter, self._need)
        except BaseException:
            # What another node began has nobody here who could give it up.
            if not self._is_resumed:
                with anyio.CancelScope(shield=True):
                    await drive(kernel.give_up(self._call), kernel.control)
            raise
        return kernel.finish(self._call)


async def _start(sandbox: Sandbox, language: Language) -> KernelProcess:
    if language.name == sandbox.warm_language:
        return sandbox.take_kernel() or await sandbox.fork_kernel()
    process = await sandbox.start_kernel(Command(language.kernel))
    if _is_missing(process):
        await process.close()
        raise _missing(language.interpreter, language)
    return process


def _is_missing(process: KernelProcess) -> bool:
    """Whether a kernel ended because there is no such program."""
    return process.end is not None and process.end.exit_code == _NOT_FOUND


def _gave_up(process: KernelProcess) -> bool:
    """Whether a kernel ended by itself: nothing that it needs will be there the next time."""
    return process.end is not None and bool(process.end.exit_code)


def _unfit(reason: str, language: Language) -> Unsupported:
    return Unsupported(
        f"{reason}; choose a template that has kernels of {language.name}", language=language.name
    )


def _missing(program: str, language: Language) -> Unsupported:
    return Unsupported(
        f"there is no {program!r} in this sandbox to run {language.name} with;"
        " choose a template or an image that has it",
        language=language.name,
    )
