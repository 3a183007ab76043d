"""Clients of another making work as they are: sync and async Python, and JavaScript. What they send and get is recorded."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from atoll.client.http import HttpNode
from tests.cli.conftest import why_not
from tests.running_server import RunningServer, running_server
from tests.server.foreign.shell_client import ShellServer

HERE = Path(__file__).parent
PAIRS: list[dict[str, Any]] = json.loads((HERE / "recorded_pairs.json").read_text())
LINE = "echo hello; echo oops >&2; exit 3"
Pair = dict[str, Any]
KINDS: dict[str, Callable[[Any], bool]] = {
    "<text>": lambda value: isinstance(value, str) and bool(value),
    "<number>": lambda value: type(value) is int,
    "<time>": lambda value: bool(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", str(value))),
}


def check(pairs: Sequence[Pair], sandbox: str) -> None:
    """Compare what a client sent and got with what was recorded."""
    assert [(pair["method"], pair["path"], pair["body"]) for pair in pairs] == [
        (each["method"], each["path"].replace("<id>", sandbox), each["body"])
        for each in (recorded["request"] for recorded in PAIRS)
    ]
    for pair, recorded in zip(pairs, PAIRS, strict=True):
        assert pair["status"] == recorded["status"], pair
        assert_like(pair["answer"], recorded["answer"], sandbox)


def assert_like(found: Any, recorded: Any, sandbox: str) -> None:
    """Compare an answer with a recorded one, which may hold less, and kinds of values in the place of some."""
    if isinstance(recorded, dict):
        for name, value in recorded.items():
            assert_like(found[name], value, sandbox)
    elif isinstance(recorded, list):
        assert len(found) == len(recorded)
        for each, value in zip(found, recorded, strict=True):
            assert_like(each, value, sandbox)
    elif recorded in KINDS:
        assert KINDS[recorded](found), (found, recorded)
    else:
        wanted = recorded.replace("<id>", sandbox) if isinstance(recorded, str) else recorded
        assert found == wanted


def as_pair(answer: httpx2.Response) -> Pair:
    request = answer.request
    body = json.loads(request.content) if request.content else None
    path = request.url.raw_path.decode()
    given = {"method": request.method, "path": path, "body": body}
    return {**given, "status": answer.status_code, "answer": answer.json()}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")
    with running_server() as server:
        yield server


def test_the_waiting_python_client_works(server: RunningServer) -> None:
    pairs: list[Pair] = []

    def record(answer: httpx2.Response) -> None:
        answer.read()
        pairs.append(as_pair(answer))

    shell = ShellServer(server.url, str(server.token))
    shell.waiting.event_hooks["response"] = [record]
    with shell.waiting:
        sandbox = shell.create("base", "first")
        assert sandbox.exec(LINE)["exit_code"] == 3
        sandbox.label("second")
        assert sandbox.tree()["tree"].startswith("second")
        assert "hello" in json.dumps(sandbox.logs())
        with pytest.raises(httpx2.HTTPStatusError, match="501"):
            sandbox.fork("child")
        with pytest.raises(httpx2.HTTPStatusError, match="501"):
            sandbox.coalesce(sandbox)
        sandbox.terminate()
    check(pairs, sandbox.id)


async def test_the_async_python_client_works(server: RunningServer) -> None:
    pairs: list[Pair] = []

    async def record(answer: httpx2.Response) -> None:
        await answer.aread()
        pairs.append(as_pair(answer))

    shell = ShellServer(server.url, str(server.token))
    shell.woken.event_hooks["response"] = [record]
    async with shell.woken:
        sandbox = await shell.acreate("base", "first")
        assert (await sandbox.aexec(LINE))["exit_code"] == 3
        await sandbox.alabel("second")
        assert (await sandbox.atree())["tree"].startswith("second")
        assert "hello" in json.dumps(await sandbox.alogs())
        with pytest.raises(httpx2.HTTPStatusError, match="501"):
            await sandbox.afork("child")
        with pytest.raises(httpx2.HTTPStatusError, match="501"):
            await sandbox.acoalesce(sandbox)
        await sandbox.aterminate()
    check(pairs, sandbox.id)


def test_the_javascript_client_works(server: RunningServer) -> None:
    program = shutil.which("node")
    if program is None:
        pytest.skip("there is no Node here to run JavaScript")
    done = subprocess.run(
        [program, str(HERE / "foreign" / "shell_client.mjs"), server.url, str(server.token)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    pairs = [json.loads(line) for line in done.stdout.splitlines()]
    check(pairs, pairs[0]["answer"]["id"])


async def test_a_line_is_streamed_as_it_was_known(client: HttpNode, sandbox: str) -> None:
    body = {"code": "echo one; echo two >&2; exit 4"}
    path = f"/sandboxes/{sandbox}/execute"
    answer = await client.ask("POST", path, body=body, params={"stream": "true"})
    assert answer.status_code == 200
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert {(each["type"], each["output"], each["exit_code"]) for each in lines} == {
        ("stdout", "one\n", -1),
        ("stderr", "two\n", -1),
        ("exit", "", 4),
    }
    assert lines[-1]["type"] == "exit"


async def test_an_image_that_is_no_template_is_refused_with_a_reason(client: HttpNode) -> None:
    async with httpx2.AsyncClient(
        transport=httpx2.AsyncHTTPTransport(uds=client.address.removeprefix("unix://")),
        base_url="http://node",
    ) as bare:
        answer = await bare.post(
            "/sandboxes", json={"image": "redis:7", "label": "db", "interactive": False}
        )
    assert 400 <= answer.status_code < 500
    assert "redis:7" in answer.json()["detail"]
