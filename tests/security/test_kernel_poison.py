"""Whatever a session does to its interpreter and its process, no later session is any different for it."""

from __future__ import annotations

from typing import Any

import pytest

from atoll import Sandbox
from tests.security.guest import parse_findings
from tests.security.sessions import attack_cell, put_attacks

pytestmark = pytest.mark.usefixtures("sdk")

_LATER = 100


def fingerprint(sandbox: Sandbox) -> dict[str, Any]:
    """Return what a fresh session says of itself."""
    cell = sandbox.run_code(attack_cell("fingerprint")).check()
    return parse_findings(cell.stdout.encode())


def fresh_fingerprint() -> dict[str, Any]:
    """Return what a session in a sandbox of its own says of itself."""
    with Sandbox() as sandbox:
        put_attacks(sandbox, "fingerprint")
        return fingerprint(sandbox)


def poison(sandbox: Sandbox) -> dict[str, Any]:
    """Change everything, and return what could be changed."""
    put_attacks(sandbox, "poison_session", "fingerprint")
    cell = sandbox.run_code(attack_cell("poison_session"))
    return parse_findings(cell.stdout.encode())


@pytest.mark.timeout(600)
def test_a_poisoned_session_leaves_no_trace_in_later_ones() -> None:
    before = fresh_fingerprint()
    with Sandbox() as poisoned:
        found = poison(poisoned)
        assert found["failed"] == []
        assert found["written"]
        assert not any(path.startswith(("/opt", "/etc")) for path in found["written"])
        for _ in range(_LATER // 2):
            assert_same(fresh_fingerprint(), before)
    for _ in range(_LATER // 2):
        assert_same(fresh_fingerprint(), before)


def test_a_poisoned_session_leaves_only_files_to_its_own_sandbox() -> None:
    """The session is begun anew in the same sandbox; what it wrote is the user's own."""
    before = fresh_fingerprint()
    with Sandbox() as sandbox:
        poison(sandbox)
        sandbox.files.remove("json.py")
        for _ in range(10):
            sandbox.restart()
            after = fingerprint(sandbox)
            assert_same({**after, "files": before["files"]}, before)


def test_the_fingerprint_shows_poison() -> None:
    """Each of these would be missed if the description did not tell it."""
    before = fresh_fingerprint()
    with Sandbox() as sandbox:
        put_attacks(sandbox, "poison_session", "fingerprint")
        sandbox.run_code(attack_cell("poison_session"))
        after = fingerprint(sandbox)
    changed = {name for name in before if before[name] != after[name]}
    assert changed >= _SHOWN, _SHOWN - changed


_SHOWN = {
    "builtins", "sum", "modules", "functions", "meta_path", "path_hooks", "path", "cwd", "umask",
    "nice", "environ", "limits", "handlers", "blocked", "timer", "hooks", "thread hooks", "exits",
    "warnings", "showwarning", "recursion", "switch", "digits", "collector", "lines", "codecs",
    "locale", "time zone", "events", "transformers", "magics", "printers", "custom exceptions",
    "names", "files",
}  # fmt: skip


def assert_same(after: dict[str, Any], before: dict[str, Any]) -> None:
    """Fail with what differs, not with everything."""
    assert {name: after[name] for name in after if after[name] != before[name]} == {}
