"""What `atoll run` does once it knows what is wanted."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from math import inf
from typing import Any

import anyio

from atoll.cli.messages import complain, describe_error, notice
from atoll.cli.options import Wish
from atoll.cli.program import Program
from atoll.cli.sandboxes import (
    keep_workspace,
    open_sandbox,
    run_until_stopped,
    tell_weak_limits,
)
from atoll.cli.streams import STDERR, STDOUT, can_pass_stdin_on, read_stdin, write_all
from atoll.engines.contract import Sandbox
from atoll.errors import AtollError
from atoll.model.process import CommandResult, EndReason, describe_end
from atoll.model.sandbox import SandboxInfo
from atoll.model.sizes import format_size
from atoll.node.commands import Commands

FAILED, NOT_FOUND = 125, 127
_READER_GRACE_SECONDS = 0.5


def run_program(wish: Wish, program: Program, timeout: float | None, *, as_json: bool) -> int:
    """Run the program and return the exit code to leave with."""
    if as_json:
        return run_until_stopped(partial(_execute_as_json, wish, program, timeout))
    return run_until_stopped(partial(_execute, wish, program, timeout))


async def _execute(wish: Wish, program: Program, timeout: float | None) -> int:
    async with open_sandbox(wish, program.argv[0]) as sandbox:
        tell_weak_limits(sandbox.info.limits)
        await _write_program(sandbox, program)
        result = await _stream(sandbox, program, timeout)
        await keep_workspace(sandbox, wish.keep)
    _tell_end(result, sandbox.info, program, timeout)
    return result.shell_code


async def _execute_as_json(wish: Wish, program: Program, timeout: float | None) -> int:
    try:
        async with open_sandbox(wish, program.argv[0]) as sandbox:
            tell_weak_limits(sandbox.info.limits)
            await _write_program(sandbox, program)
            stdin = read_stdin() if _passes_stdin(program) else None
            result = await Commands(sandbox).run(program.argv, stdin=stdin, timeout=timeout)
            await keep_workspace(sandbox, wish.keep)
    except AtollError as error:
        return await fail_as_json(error)
    await print_json(describe_result(result, sandbox.info))
    return result.shell_code


async def _write_program(sandbox: Sandbox, program: Program) -> None:
    if program.path is not None:
        await sandbox.workspace.write(program.path, program.content)


def _passes_stdin(program: Program) -> bool:
    return program.takes_stdin and can_pass_stdin_on()


async def _stream(sandbox: Sandbox, program: Program, timeout: float | None) -> CommandResult:
    stdin = read_stdin() if _passes_stdin(program) else None
    give_up = anyio.current_time() + (inf if timeout is None else timeout + _READER_GRACE_SECONDS)
    async with Commands(sandbox) as commands:
        events = commands.stream(program.argv, stdin=stdin, timeout=timeout, max_output_bytes=1)
        async with aclosing(events):
            async for event in events:
                if isinstance(event, CommandResult):
                    return event
                # Whoever reads us may have stopped for good; that must not outlast the timeout.
                with anyio.CancelScope(deadline=give_up):
                    await write_all(STDOUT if event.stream == "stdout" else STDERR, event.data)
    raise AssertionError("a stream of events ends with a result")


def _tell_end(
    result: CommandResult, info: SandboxInfo, program: Program, timeout: float | None
) -> None:
    """Say on standard error what an exit code cannot."""
    limits = info.limits.limits
    match result.reason:
        case EndReason.TIMED_OUT:
            notice(f"stopped after {timeout:g} s; --timeout gives it longer")
        case EndReason.OUT_OF_MEMORY:
            notice(
                f"ran out of memory at {format_size(limits.memory_bytes)}; --memory gives it more"
            )
        case EndReason.TOO_MANY_PROCESSES:
            notice(f"wanted more than {limits.processes} processes; --processes allows more")
        case EndReason.EXITED if result.exit_code == NOT_FOUND and not result.stderr:
            notice(f"{program.argv[0]} was not found inside; install it on this machine")
        case EndReason.EXITED:
            return
        case _:
            notice(f"the program {describe_end(result)}")


def describe_result(result: CommandResult, info: SandboxInfo) -> dict[str, Any]:
    """Return a result and what the sandbox was as one JSON object."""
    return {
        "engine": info.engine,
        "sandbox": info.id,
        "limits": asdict(info.limits.limits),
        "enforced_by": dict(info.limits.enforced_by),
        "exit_code": result.exit_code,
        "signal": result.signal,
        "reason": result.reason.value,
        "timed_out": result.timed_out,
        "aborted": result.aborted,
        **_describe_bytes("stdout", result.stdout, result.stdout_truncated),
        **_describe_bytes("stderr", result.stderr, result.stderr_truncated),
        "duration": round(result.duration, 6),
    }


def _describe_bytes(name: str, data: bytes, truncated: bool) -> dict[str, Any]:
    import codecs
    from base64 import b64encode

    # A cut may fall inside a character; that does not make the rest anything but text.
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        text: str | None = decoder.decode(data, final=not truncated)
        encoded = {}
    except UnicodeDecodeError:
        text, encoded = None, {f"{name}_base64": b64encode(data).decode()}
    return {name: text, **encoded, f"{name}_truncated": truncated}


async def fail_as_json(error: AtollError) -> int:
    """Tell what Atoll failed to do, to programs and to people; return the exit code for it."""
    await print_json({"error": {"code": error.code, "message": error.message}})
    complain(*describe_error(error))
    return FAILED


async def print_json(value: dict[str, Any]) -> None:
    """Print one object, however slowly it is read."""
    await write_all(STDOUT, json.dumps(value).encode() + b"\n")
