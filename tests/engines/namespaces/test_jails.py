"""A jail that is let go of keeps nobody waiting."""

from __future__ import annotations

import threading

import pytest

from atoll.engines.namespaces import channel
from atoll.engines.namespaces.engine import BINARIES
from atoll.engines.namespaces.mounts import base_template
from atoll.engines.namespaces.wire import SpawnRequest
from atoll.engines.namespaces.zygotes import Jail, ZygoteAge
from atoll.errors import Unavailable
from tests.host_state import eventually

pytestmark = pytest.mark.any_user


def test_whoever_waits_for_a_zygote_is_told_that_there_will_be_none() -> None:
    ours, theirs = channel.socket_pair()
    jail = Jail(ours, 0, base_template(BINARIES / "init"), ZygoteAge())
    jail._count = 1  # one, which is busy with another sandbox
    told: list[Unavailable] = []

    def spawn() -> None:
        try:
            jail.spawn(SpawnRequest(), [])
        except Unavailable as error:
            told.append(error)

    waiting = threading.Thread(target=spawn, daemon=True)
    with theirs:
        waiting.start()
        assert eventually(lambda: bool(jail._missed), 60)
        assert not jail.is_gone
        jail.close()
        waiting.join(60)
    assert [error.retryable for error in told] == [True]
    assert jail.is_gone
