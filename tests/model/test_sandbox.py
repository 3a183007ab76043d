"""Ids and specs of sandboxes."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.errors import InvalidRequest
from atoll.model.ids import new_process_id, new_sandbox_id, parse_sandbox_id
from atoll.model.sandbox import SandboxSpec

pytestmark = pytest.mark.any_user


def test_ids_are_fresh_and_fit_a_name_in_dns() -> None:
    ids = {new_sandbox_id() for _ in range(1000)} | {new_process_id() for _ in range(1000)}
    assert len(ids) == 2000
    for each in ids:
        assert len(f"65535-{each}") <= 63
        assert parse_sandbox_id(each) == each


@pytest.mark.parametrize(
    "text", ["", "a" * 25, "a" * 27, "A" * 26, "a" * 25 + "\n", "../" + "a" * 23]
)
def test_anything_else_is_no_id(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_sandbox_id(text)


@pytest.mark.parametrize("hostname", ["", "-a", "a-", "A", "a.b", "a" * 64, "a\n", None, 5])
def test_an_odd_hostname_is_refused(hostname: Any) -> None:
    with pytest.raises(InvalidRequest, match="hostname"):
        SandboxSpec(hostname=hostname)


@pytest.mark.parametrize("env", [{"": "x"}, {"a=b": "x"}, {"A": 5}, {"A": "x\0"}, {5: "x"}])
def test_an_odd_environment_is_refused(env: Any) -> None:
    with pytest.raises(InvalidRequest):
        SandboxSpec(env=env)
