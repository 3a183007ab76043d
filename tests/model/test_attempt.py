"""The record of an attempt, read back from one who may lie."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.errors import InvalidRequest
from atoll.model.attempt import AttemptInfo
from atoll.model.ids import new_sandbox_id

pytestmark = pytest.mark.any_user

ATTEMPT = AttemptInfo(
    sandbox=new_sandbox_id(),
    time=1.5,
    scheme="https",
    host="api.example",
    port=443,
    method="CONNECT",
    path="",
    address="192.0.2.1",
    verdict="allowed",
    reason="",
    up_bytes=1,
    down_bytes=2,
    seconds=0.25,
)


def test_it_reads_what_it_wrote() -> None:
    assert AttemptInfo.from_json(ATTEMPT.to_json()) == ATTEMPT


@pytest.mark.parametrize(
    "change",
    [
        {"host": None},
        {"host": "x" * 5000},
        {"port": True},
        {"port": -1},
        {"up_bytes": 1.5},
        {"seconds": float("nan")},
        {"time": "now"},
        {"verdict": "fine"},
        {"verdict": ["allowed"]},
        {"more": 1},
    ],
)
def test_anything_else_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        AttemptInfo.from_json({**ATTEMPT.to_json(), **change})
