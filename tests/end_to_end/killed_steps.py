"""Named steps of a node at each of which it can be killed: which call, and before it, after it or in its middle.

They lie in the tests, not in the node: what is not in the product costs nothing and cannot be reached from outside. A step
whose call was renamed is not found any more, which fails the test that looks at all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from atoll.engines.namespaces.wire import InitOp
from atoll.model.execution import ExecutionState
from atoll.model.sandbox import SandboxState
from atoll.node.kernel_spool import Phase
from atoll.node.records import ExecutionRecord, IdempotencyRecord, Record, SandboxRecord


class Moment(StrEnum):
    """When to be killed."""

    BEFORE = "before"
    AFTER = "after"
    HALF = "half"  # after the call was made with the first half of its bytes


class Chapter(StrEnum):
    """In which part of a node's life a step comes."""

    START = "start"  # what the last node left is taken over
    SERVICE = "service"
    KEEPING = "keeping"  # it is told to end, and to leave its sandboxes to the next
    STOPPING = "stopping"  # it is told to end, and its sandboxes with it


When = Callable[..., bool]


def _always(*_arguments: Any, **_options: Any) -> bool:
    return True


@dataclass(frozen=True)
class Step:
    """One call of a node."""

    target: str  # module:name, or module:class.name
    moment: Moment = Moment.AFTER
    when: When = _always  # gets what the call gets
    chapter: Chapter = Chapter.SERVICE


def _before(target: str, when: When = _always, chapter: Chapter = Chapter.SERVICE) -> Step:
    return Step(target, Moment.BEFORE, when, chapter)


def _after(target: str, when: When = _always, chapter: Chapter = Chapter.SERVICE) -> Step:
    return Step(target, Moment.AFTER, when, chapter)


def _half(target: str, when: When = _always) -> Step:
    return Step(target, Moment.HALF, when)


def _is_sandbox(state: SandboxState) -> When:
    def check(_records: Any, record: Record, *_rest: Any, **_options: Any) -> bool:
        return isinstance(record, SandboxRecord) and record.state is state

    return check


def _is_execution(state: ExecutionState) -> When:
    def check(_records: Any, record: Record, *_rest: Any, **_options: Any) -> bool:
        return isinstance(record, ExecutionRecord) and record.state == state.value

    return check


def _is_key(_records: Any, record: Record, *_rest: Any, **_options: Any) -> bool:
    return isinstance(record, IdempotencyRecord)


def _slot(name: str) -> When:
    return lambda _shelf, slot, *_rest, **_options: bool(slot == name)


def _asks(op: InitOp) -> When:
    return lambda _sandbox, asked, *_rest: asked is op


def _phase(phase: Phase) -> When:
    return lambda _spool, request: request.phase is phase and bool(request.call)


def _file(name: str) -> When:
    return lambda _files, written, *_rest: bool(written == name)


def _has_frame(_spool: Any, frame: bytes, _place: int) -> bool:
    return bool(frame)


def _is_large(spool: Any) -> bool:
    """Whether a request does not fit into a socket as a whole."""
    return os.fstat(spool._request).st_size > 500_000


def _confirms(_server: Any, message: bytes, _fds: Any) -> bool:
    return message == b"y"


_NODE = "atoll.node"
_ENGINE = "atoll.engines.namespaces"
_REMEMBER = f"{_NODE}.kept_records:KeptRecords.remember"
_NOTE = f"{_NODE}.kernel_spool:KernelSpool._note"
_PREPARE = f"{_NODE}.kernel_spool:KernelSpool._prepare"
_KEEP = f"{_ENGINE}.shelf:Shelf.keep"
_ASK_INIT = f"{_ENGINE}.sandbox:NamespaceSandbox._ask_init"
_FILES_WRITE = f"{_NODE}.log_files:LogFiles.write"

STEPS: Mapping[str, Step] = {
    # A sandbox is made.
    "create.asked": _before(f"{_NODE}.node:Node._intend"),
    "create.intent_written": _after(_REMEMBER, _is_sandbox(SandboxState.CREATING)),
    "create.cgroup_planned": _after(f"{_ENGINE}.engine:_plan_cgroup"),
    "create.zygote_asked": _after(f"{_ENGINE}.zygotes:Jail.spawn"),
    "create.init_known": _before(f"{_ENGINE}.engine:_keep_init"),
    "create.init_kept": _after(f"{_ENGINE}.engine:_keep_init"),
    "create.init_said_hello": _after(f"{_ENGINE}.boot:receive_hello"),
    "create.attested": _after(f"{_ENGINE}.engine:NamespaceEngine._attest"),
    "create.handed_over": _after(f"{_ENGINE}.engine:_hand_over"),
    "create.kernel_taken": _after(f"{_ENGINE}.sandbox:NamespaceSandbox.take_kernel"),
    "create.spool_made": _after(f"{_NODE}.kernel_spool:Spools.open"),
    "create.kernel_greeted": _after(f"{_NODE}.conversation:Conversation.greet"),
    "create.kernel_labelled": _after(f"{_NODE}.kernel_spool:KernelSpool.label"),
    "create.hosted": _after(f"{_NODE}.hosting:Hosting.open"),
    "create.seeded": _after(f"{_NODE}.hosted:HostedSandbox.seed"),
    "create.settled": _after(_REMEMBER, _is_sandbox(SandboxState.RUNNING)),
    "create.program_started": _after("atoll.server.programs:Programs._start"),
    "create.program_noted": _after("atoll.server.programs:Programs.start"),
    # A request has its effect once.
    "key.written": _after(_REMEMBER, _is_key),
    "key.carried_out": _after(f"{_NODE}.idempotency:Idempotency.once"),
    # A command.
    "command.log_made": _after(f"{_NODE}.execution_log:ExecutionLog.create"),
    "command.intent_written": _after(_REMEMBER, _is_execution(ExecutionState.RUNNING)),
    "command.stdin_kept": _after(f"{_NODE}.executions:Executions._keep_stdin"),
    "command.plumbing_kept": _after(_KEEP, _slot("plumbing")),
    "command.init_to_be_asked": _before(_ASK_INIT, _asks(InitOp.RUN)),
    "command.init_asked": _after(_ASK_INIT, _asks(InitOp.RUN)),
    "command.start_kept": _after(_KEEP, _slot("started")),
    "command.start_heard": _after(f"{_ENGINE}.process:NamespaceProcess._first_report"),
    "command.started": _after(f"{_NODE}.executions:Executions._start"),
    "command.stdin_sent": _after(f"{_NODE}.stdin_feed:StdinFeed._send"),
    "command.end_kept": _after(_KEEP, _slot("end")),
    "command.ended": _after(f"{_NODE}.output_pump:OutputPump.run"),
    "command.released": _after(f"{_NODE}.execution:ProcessExecution._release"),
    "command.end_logged": _after(f"{_NODE}.execution_log:ExecutionLog.end"),
    "command.end_written": _after(_REMEMBER, _is_execution(ExecutionState.ENDED)),
    # A terminal.
    "terminal.relay_kept": _after(f"{_NODE}.executions:Executions._make_relays"),
    "terminal.relay_filled": _after(f"{_NODE}.spool:Spool._fill"),
    # What is printed.
    "output.moved": _after(f"{_NODE}.execution_log:ExecutionLog._move"),
    "output.recorded": _after(f"{_NODE}.execution_log:ExecutionLog._record"),
    "output.index_torn": _half(_FILES_WRITE, _file("index")),
    "output.value_torn": _half(_FILES_WRITE, _file("values")),
    "output.value_written": _after(_FILES_WRITE, _file("values")),
    # A cell.
    "cell.prepared": _after(_NOTE, _phase(Phase.PREPARING)),
    "cell.spool_emptied": _before(_PREPARE, _has_frame),
    "cell.frame_ready": _after(_PREPARE, _has_frame),
    "cell.to_be_sent": _after(_NOTE, _phase(Phase.ASKED)),
    "cell.partly_sent": _after(f"{_NODE}.kernel_spool:KernelSpool.send", _is_large),
    "cell.sent": _after(f"{_NODE}.conversation:Conversation._push"),
    "cell.heard": _after(f"{_NODE}.kernel_spool:SpoolFile._move"),
    "cell.written": _after(f"{_NODE}.cell_execution:CellWriter.take"),
    "cell.ended": _after(f"{_NODE}.cell_execution:CellWriter.settle"),
    # A file.
    "upload.asked": _before(f"{_ENGINE}.workspace:NamespaceWorkspace._write_stream"),
    "upload.server_asked": _after(f"{_ENGINE}.transfers:Pipe.close_read_end"),
    "upload.to_be_confirmed": _before(f"{_ENGINE}.workspace:_send", _confirms),
    "upload.written": _after(f"{_ENGINE}.workspace:NamespaceWorkspace._write_stream"),
    # An end.
    "destroy.asked": _before(f"{_NODE}.node:Node.end"),
    "destroy.killed": _after(f"{_ENGINE}.sandbox:NamespaceSandbox._kill"),
    "destroy.released": _after(f"{_ENGINE}.sandbox:NamespaceSandbox._release"),
    "destroy.removed": _after(f"{_ENGINE}.sandbox:NamespaceSandbox._remove"),
    "destroy.spools_removed": _after(f"{_NODE}.hosted:HostedSandbox.destroy"),
    "destroy.end_written": _after(f"{_NODE}.node:Node._write_end"),
    # What is remembered.
    "journal.torn": _half(f"{_NODE}.journal:Journal._write"),
    "journal.written": _after(f"{_NODE}.journal:Journal.append"),
    "store.to_be_saved": _before(f"{_NODE}.store:Store.save"),
    "store.saved": _after(f"{_NODE}.store:Store.save"),
    "store.settled": _after(f"{_NODE}.journal:Journal.settle"),
    # A node starts, and goes on with what the last one left.
    "adopt.records_opened": _after(f"{_NODE}.kept_records:KeptRecords.open", chapter=Chapter.START),
    "adopt.recalled": _after(
        f"{_ENGINE}.lasting_keeper:LastingKeeper.recall", chapter=Chapter.START
    ),
    "adopt.jail_taken": _after(
        f"{_ENGINE}.engine:NamespaceEngine._adopt_jail", chapter=Chapter.START
    ),
    "adopt.sandbox_taken": _after(
        f"{_ENGINE}.engine:NamespaceEngine._adopt", chapter=Chapter.START
    ),
    "adopt.kernels_taken": _after(f"{_NODE}.hosting:Hosting.adopt", chapter=Chapter.START),
    "adopt.sandbox_written": _after(f"{_NODE}.node:Node._adopt", chapter=Chapter.START),
    "adopt.sandboxes_done": _after(f"{_NODE}.node:Node.adopt", chapter=Chapter.START),
    "adopt.log_opened": _after(f"{_NODE}.executions:Executions.resume_log", chapter=Chapter.START),
    "adopt.process_taken": _after(
        f"{_NODE}.execution_adoption:ExecutionAdoption._adopt_process", chapter=Chapter.START
    ),
    "adopt.cell_taken": _after(
        f"{_NODE}.execution_adoption:ExecutionAdoption._adopt_cell", chapter=Chapter.START
    ),
    "adopt.executions_done": _after(
        f"{_NODE}.execution_adoption:ExecutionAdoption.adopt", chapter=Chapter.START
    ),
    "adopt.socket_bound": _after("atoll.server.sockets:_bind", chapter=Chapter.START),
    # A node is told to end.
    "keep.told": _before("atoll.server.listening:_drain", chapter=Chapter.KEEPING),
    "keep.to_be_left": _before(f"{_NODE}.node:Node.leave", chapter=Chapter.KEEPING),
    "keep.sandbox_left": _after(
        f"{_ENGINE}.sandbox:NamespaceSandbox.leave", chapter=Chapter.KEEPING
    ),
    "keep.left": _after(f"{_NODE}.node:Node.leave", chapter=Chapter.KEEPING),
    "keep.records_closed": _after(
        f"{_NODE}.kept_records:KeptRecords.close", chapter=Chapter.KEEPING
    ),
    "stop.to_be_closed": _before(f"{_NODE}.node:Node.close", chapter=Chapter.STOPPING),
    "stop.sandbox_ended": _after(f"{_NODE}.node:Node.end", chapter=Chapter.STOPPING),
    "stop.engine_closed": _after(
        f"{_ENGINE}.engine:NamespaceEngine.close", chapter=Chapter.STOPPING
    ),
}
