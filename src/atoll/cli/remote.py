"""What `atoll exec` and `atoll shell SANDBOX` do: a command on the node, joined to this process's streams or terminal."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio

from atoll.cli.environment import terminal_kind
from atoll.cli.execution import describe_result, fail_as_json, print_json
from atoll.cli.interaction import raw_terminal, terminal_size
from atoll.cli.messages import notice
from atoll.cli.nodes import find_sandbox, run_on_node
from atoll.cli.streams import (
    STDERR,
    STDIN,
    STDOUT,
    can_pass_stdin_on,
    read_stdin,
    wait_readable,
    write_all,
)
from atoll.client.http import Attachment, HttpNode
from atoll.client.remote.outputs import Kept, to_output
from atoll.client.remote.values import to_sandbox
from atoll.errors import AtollError, Conflict
from atoll.model.execution import EventType, ExecutionEvent, shell_code

_CHUNK = 65536
_CANCEL_SECONDS = 5.0
Input = Callable[[Attachment], Coroutine[Any, Any, None]]
Take = Callable[[ExecutionEvent], Awaitable[None]]


def run_command(sandbox: str, body: Mapping[str, Any], *, takes_stdin: bool, as_json: bool) -> int:
    """Run a command to its end and return its exit code; Ctrl-C goes to it."""
    reads = takes_stdin or can_pass_stdin_on()
    wish = {**body, "kind": "command", "keep_stdin": reads}
    inputs = [_pass_interrupts, *([_pass_stdin] if reads else [])]
    return run_on_node(partial(_run_as_json if as_json else _run, sandbox, wish, inputs))


def run_terminal(sandbox: str, body: Mapping[str, Any]) -> int:
    """Join this terminal to a new one in a sandbox and return the exit code of what ran there."""
    size = terminal_size()
    wish = {
        **body,
        "kind": "terminal",
        "env": {"TERM": terminal_kind(), **body["env"]},
        "size": {"rows": size.rows, "columns": size.columns},
    }
    with raw_terminal(STDIN):
        return run_on_node(partial(_run, sandbox, wish, [_pass_keys, _pass_sizes]))


async def _run(
    sandbox: str, wish: Mapping[str, Any], inputs: Sequence[Input], node: HttpNode
) -> int:
    found = await find_sandbox(node, sandbox)
    outcome = await _carry_out(node, found["id"], wish, inputs, _show)
    _tell_end(outcome)
    return shell_code(outcome)


async def _run_as_json(
    sandbox: str, wish: Mapping[str, Any], inputs: Sequence[Input], node: HttpNode
) -> int:
    kept = Kept()
    try:
        found = await find_sandbox(node, sandbox)
        outcome = await _carry_out(node, found["id"], wish, inputs, partial(_keep, kept))
    except AtollError as error:
        return await fail_as_json(error)
    await print_json(describe_result(kept.result(outcome), to_sandbox(found)))
    return shell_code(outcome)


async def _keep(kept: Kept, event: ExecutionEvent) -> None:
    if (output := to_output(event)) is not None:
        kept.take(output)


async def _carry_out(
    node: HttpNode, sandbox_id: str, wish: Mapping[str, Any], inputs: Sequence[Input], take: Take
) -> Mapping[str, Any]:
    """Start an execution and see it through; it ends with us."""
    execution = await node.call("POST", f"/sandboxes/{sandbox_id}/executions", body=wish)
    try:
        return await _join(node, execution["id"], inputs, take)
    except BaseException:
        await _cancel(node, execution["id"])
        raise


async def _join(
    node: HttpNode, execution_id: str, inputs: Sequence[Input], take: Take
) -> Mapping[str, Any]:
    """Pass everything on, both ways, until the execution ends."""
    async with node.attach(execution_id) as attachment, anyio.create_task_group() as tasks:
        for each in inputs:
            tasks.start_soon(_until_end, each, attachment)
        async with aclosing(attachment.events()) as events:
            async for event in events:
                await take(event)
                if event.type is EventType.END:
                    tasks.cancel_scope.cancel()
                    return event.value
    raise AssertionError("events end with the end")


async def _until_end(pass_on: Input, attachment: Attachment) -> None:
    try:
        await pass_on(attachment)
    except Conflict:
        return  # its end is being waited for elsewhere


async def _show(event: ExecutionEvent) -> None:
    if event.type is EventType.STDERR:
        await write_all(STDERR, event.data)
    elif event.type is EventType.STDOUT:
        await write_all(STDOUT, event.data)


async def _pass_stdin(attachment: Attachment) -> None:
    async for data in read_stdin():
        await attachment.write(data)
    await attachment.tell("close_stdin")


async def _pass_interrupts(attachment: Attachment) -> None:
    """Send Ctrl-C on; whoever is not content with that presses it again."""
    with anyio.open_signal_receiver(signal.SIGINT) as interrupts:
        async for _ in interrupts:
            await attachment.tell("signal", signal=signal.SIGINT.value)
            break
        async for _ in interrupts:
            await attachment.tell("cancel")


async def _pass_keys(attachment: Attachment) -> None:
    while True:
        await wait_readable(STDIN)
        keys = os.read(STDIN, _CHUNK)
        if not keys:
            return
        await attachment.write(keys)


async def _pass_sizes(attachment: Attachment) -> None:
    with anyio.open_signal_receiver(signal.SIGWINCH) as changes:
        async for _ in changes:
            size = terminal_size()
            await attachment.tell("resize", rows=size.rows, columns=size.columns)


async def _cancel(node: HttpNode, execution_id: str) -> None:
    with anyio.move_on_after(_CANCEL_SECONDS, shield=True):
        try:
            await node.call("DELETE", f"/executions/{execution_id}")
        except AtollError:
            pass  # the node has gone; what brought us here is told instead


def _tell_end(outcome: Mapping[str, Any]) -> None:
    """Say on standard error what an exit code cannot."""
    words = {
        "timed_out": "the command took longer than its timeout",
        "out_of_memory": "the command ran out of memory",
        "too_many_processes": "the command could not start more processes",
        "killed": "the command was killed",
        "lost": "the command was lost with its sandbox",
    }
    if text := words.get(str(outcome.get("reason"))):
        notice(text)
