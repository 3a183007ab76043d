"""Sessions by the manager: code, shell lines, caps, conversations, and their end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from atoll import Sandbox
from atoll.errors import Conflict, Forbidden, InvalidRequest, LimitExceeded, NotFound
from atoll.integrations.manager import SandboxManager
from tests.running_node import RunningNode, running_node


@pytest.fixture(scope="module")
def served() -> Iterator[RunningNode]:
    with running_node() as node:
        yield node


@pytest.fixture(params=["embedded", "server"])
def manager(request: pytest.FixtureRequest) -> Iterator[SandboxManager]:
    url = "" if request.param == "embedded" else request.getfixturevalue("served").address
    with SandboxManager(url=url) as manager:
        yield manager


def test_a_session_keeps_variables_and_files(manager: SandboxManager) -> None:
    session = manager.create_session("python")
    assert (len(session.session_id), session.status, session.runtime) == (8, "running", "python")
    assert manager.execute_code(session.session_id, "x = 20\nprint('hi')").stdout == "hi\n"
    done = manager.execute_code(session.session_id, "x + 1")
    assert done.success and done.result is not None and done.result["text/plain"] == "21"
    shown = manager.execute_code(session.session_id, "display('shown'); open('f', 'w').write('y')")
    assert [each["text/plain"] for each in shown.display_outputs] == ["'shown'"]
    line = manager.execute_terminal(session.session_id, "cat f; echo no >&2; exit 3")
    assert (line.exit_code, line.stdout, line.stderr) == (3, "y", "no\n")
    assert manager.get_session(session.session_id).last_activity >= session.created_at


def test_errors_and_timeouts_are_results(manager: SandboxManager) -> None:
    session = manager.create_session()
    failed = manager.execute_code(session.session_id, "1 / 0")
    assert not failed.success and failed.error is not None
    assert failed.error.type == "ZeroDivisionError" and "1 / 0" in failed.error.traceback
    late = manager.execute_code(session.session_id, "while True: pass", timeout=1)
    assert not late.success and late.error is not None
    assert manager.execute_code(session.session_id, "'still here'").success


def test_long_texts_keep_head_and_tail(manager: SandboxManager) -> None:
    session = manager.create_session().session_id
    printed = manager.execute_code(session, "print('head' + 'x' * 60_000 + 'tail')").stdout
    assert len(printed) == 50_000
    assert printed.startswith("headx") and printed.endswith("xtail\n")
    assert "stdout is cut: 60,009 characters in all; write it to a file" in printed
    code = "import sys\nprint('y' * 130_000, file=sys.stderr)\n'z' * 40_000"
    both = manager.execute_code(session, code)
    assert both.result is not None
    assert (len(both.stderr), len(both.result["text/plain"])) == (120_000, 30_000)
    deep = "def f(n): exec('f(n - 1)  # ' + 'a' * 500) if n else 1 / 0\nf(60)"
    failed = manager.execute_code(session, deep)
    assert failed.error is not None
    assert len(failed.error.traceback) <= 8_000
    assert "ZeroDivisionError" in failed.error.traceback[-200:]
    line = manager.execute_terminal(session, "head -c 3000000 /dev/zero | tr '\\0' a")
    assert len(line.stdout) == 50_000 and "more than 1,048,576 characters" in line.stdout


def test_other_runtimes(manager: SandboxManager) -> None:
    session = manager.create_session("node")
    done = manager.execute_code(session.session_id, "[1, 2].map(n => n * 2)")
    assert done.success and done.result is not None and "2" in done.result["text/plain"]
    with pytest.raises(InvalidRequest, match="julia"):
        manager.create_session("julia")


def test_there_are_so_many_and_no_more() -> None:
    with SandboxManager(url="", most_sessions=3, most_per_thread=2) as manager:
        with manager.conversation("a"):
            first = manager.create_session()
            manager.create_session()
            with pytest.raises(LimitExceeded, match="this conversation has 2"):
                manager.create_session()
        with manager.conversation("b"):
            manager.create_session()
            with pytest.raises(LimitExceeded, match="there are 3 sessions"):
                manager.create_session()
            with pytest.raises(Forbidden, match="another conversation"):
                manager.execute_code(first.session_id, "1")
        assert manager.cleanup_thread_sessions("a") == 2
        assert manager.cleanup_thread_sessions("a") == 0
        assert manager.cleanup_all() == 1
        assert manager.list_sessions() == []


def test_what_is_gone_is_told(manager: SandboxManager) -> None:
    session = manager.create_session()
    assert manager.stop_session(session.session_id)
    assert not manager.stop_session(session.session_id)
    with pytest.raises(NotFound, match=session.session_id):
        manager.execute_code(session.session_id, "1")


def test_a_sandbox_that_ended_makes_its_session_dead(served: RunningNode) -> None:
    with SandboxManager(url=served.address) as manager:
        session = manager.create_session()
        Sandbox.connect(session.container_id, url=served.address).destroy()
        with pytest.raises(Conflict, match="has died"):
            manager.execute_code(session.session_id, "1")
        assert manager.get_session(session.session_id).status == "dead"


def test_what_an_installer_says_does_not_end_a_session(manager: SandboxManager) -> None:
    session = manager.create_session("python", {"no-such-package-anywhere": "0.0.1"})
    assert session.stderr
    assert manager.execute_code(session.session_id, "1").success
    with pytest.raises(InvalidRequest):
        manager.create_session("python", {"--index-url": ""})
