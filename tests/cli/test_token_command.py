"""`atoll token` and `atoll user`: who may come in, from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cli.conftest import why_not
from tests.running_node import RunningNode, running_node


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")
    with running_node() as node:
        yield node


def atoll(node: RunningNode, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "atoll", *words],
        env=node.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_token_is_made_listed_and_revoked(node: RunningNode) -> None:
    made = atoll(node, "token", "create", "--name", "ci", "--scope", "read", "--expires", "30d")
    assert made.returncode == 0, made.stderr
    # The token alone, so that a script can take it as it is.
    text = made.stdout.removesuffix("\n")
    assert text.startswith("atoll_")
    assert "not shown again" in made.stderr
    heading, row = atoll(node, "token", "ls").stdout.splitlines()
    assert heading.split()[:4] == ["ID", "NAME", "KIND", "SCOPE"]
    token = text.split("_")[1]
    assert row.split()[:4] == [token, "ci", "token", "read"]
    assert "in 29d" in row
    assert row.endswith("valid")
    assert atoll(node, "token", "rm", token).stdout == f"{token}\n"
    (listed,) = json.loads(atoll(node, "token", "ls", "--json").stdout)
    assert listed["revoked_at"] is not None
    assert text not in json.dumps(listed)


def test_a_user_is_added_given_a_token_disabled_and_enabled(node: RunningNode) -> None:
    assert atoll(node, "user", "add", "bob").stdout == "bob\n"
    made = json.loads(atoll(node, "token", "create", "--user", "bob", "--json").stdout)
    (listed,) = json.loads(atoll(node, "token", "ls", "--user", "bob", "--json").stdout)
    assert listed["id"] == made["id"]
    assert atoll(node, "user", "disable", "bob").stdout == "bob\n"
    users = json.loads(atoll(node, "user", "ls", "--json").stdout)
    assert {user["name"]: user["disabled_at"] is None for user in users} == {
        "admin": True,
        "bob": False,
    }
    table = atoll(node, "user", "ls").stdout.splitlines()
    assert table[0].split() == ["NAME", "ROLE", "CREATED", "STATE", "ID"]
    assert "disabled" in table[2]
    assert json.loads(atoll(node, "user", "enable", "bob", "--json").stdout)[0]["name"] == "bob"
    boss = json.loads(atoll(node, "user", "add", "boss", "--admin", "--json").stdout)
    assert boss["role"] == "admin"


@pytest.mark.parametrize(
    ("words", "code", "fault"),
    [
        (("token", "rm"), 2, "needs ids"),
        (("token", "ls", "abc"), 2, "needs ids"),
        (("token", "ls", "--scope", "read"), 2, "go with 'atoll token create'"),
        (("token", "create", "--scope", "king"), 2, "invalid choice"),
        (("token", "create", "--sandbox", "missing"), 125, "missing"),
        (("token", "create", "--user", "missing"), 125, "there is no user 'missing'"),
        (("token", "rm", "aaaaaaaaaaaa"), 125, "there is no token"),
        (("user", "add"), 2, "needs one name"),
        (("user", "ls", "bob"), 2, "'ls' none"),
        (("user", "disable", "bob", "--admin"), 2, "--admin goes with"),
        (("user", "add", "Not Plain"), 125, "is not 1 to 63 characters"),
        (("user", "disable", "admin"), 125, "cannot be disabled"),
        (("user", "disable", "missing"), 125, "there is no user 'missing'"),
    ],
)
def test_what_cannot_be_is_told(
    node: RunningNode, words: tuple[str, ...], code: int, fault: str
) -> None:
    done = atoll(node, *words)
    assert fault in done.stderr
    assert done.returncode == code
