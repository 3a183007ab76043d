"""`atoll secret`: values come from standard input or a prompt, and are never shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cli.conftest import why_not
from tests.running_node import RunningNode, running_node

VALUE = "value-that-is-never-shown"


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")
    with running_node() as node:
        yield node


def atoll(node: RunningNode, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "atoll", *words],
        env=node.environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert VALUE not in done.stdout + done.stderr
    return done


def test_a_secret_is_set_listed_given_and_removed(node: RunningNode) -> None:
    words = ("--host", "api.example", "--host", "api.example:8443", "--header", "X-Api-Key")
    assert atoll(node, "secret", "set", "api", *words, stdin=f"{VALUE}\n").stdout == "api\n"
    (listed,) = json.loads(atoll(node, "secret", "ls", "--json").stdout)
    assert listed["hosts"] == ["api.example", "api.example:8443"]
    assert (listed["place"], listed["field"]) == ("header", "X-Api-Key")
    heading, row = atoll(node, "secret", "ls").stdout.splitlines()
    assert heading.split()[:3] == ["NAME", "HOSTS", "PLACE"]
    assert row.startswith("api   api.example, api.example:8443  header X-Api-Key")
    made = atoll(
        node,
        *("create", "--network", "api.example:443,api.example:8443", "--secret", "API_KEY=api"),
    )
    assert made.returncode == 0, made.stderr
    shown = atoll(node, "exec", made.stdout.strip(), "--", "sh", "-c", "echo $API_KEY")
    assert shown.stdout.startswith("atoll-secret-")
    assert "1 secrets" in atoll(node, "secret", "rotate").stdout
    assert atoll(node, "secret", "rm", "api").stdout == "api\n"
    assert json.loads(atoll(node, "secret", "ls", "--json").stdout) == []
    assert atoll(node, "rm", made.stdout.strip()).returncode == 0


def test_a_terminal_is_asked_without_an_echo(node: RunningNode) -> None:
    master, slave = os.openpty()
    command = [sys.executable, "-P", "-m", "atoll", "secret", "set", "asked", "--host", "a.example"]
    process = subprocess.Popen(
        command,
        env=node.environment,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    shown = b""
    while b"value of asked: " not in shown:
        shown += os.read(master, 1000)
    os.write(master, f"{VALUE}\n".encode())
    try:
        while more := os.read(master, 1000):
            shown += more
    except OSError:
        pass  # the other end has closed
    os.close(master)
    assert process.wait(60) == 0, shown
    assert VALUE.encode() not in shown
    assert [each["name"] for each in json.loads(atoll(node, "secret", "ls", "--json").stdout)] == [
        "asked"
    ]


@pytest.mark.parametrize(
    ("words", "code", "fault"),
    [
        (("set", "api"), 2, "needs --host"),
        (("set", "--host", "a.example"), 2, "needs one name"),
        (("ls", "--host", "a.example"), 2, "needs --host"),
        (("set", "api", "--host", "*.example"), 125, "a star stands"),
        (("set", "api", "--host", "a.example", "--header", "X", "--query", "y"), 2, "not allowed"),
        (("rm", "missing"), 125, "there is no secret 'missing'"),
    ],
)
def test_what_cannot_be_is_told(
    node: RunningNode, words: tuple[str, ...], code: int, fault: str
) -> None:
    done = atoll(node, "secret", *words, stdin=VALUE)
    assert fault in done.stderr
    assert done.returncode == code
