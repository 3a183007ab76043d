"""Idempotency keys: one effect for each, whatever happens."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from atoll.errors import Conflict, InvalidRequest, Unavailable
from atoll.node.idempotency import Answer, Idempotency, KeyedRequest
from atoll.node.records import MemoryRecords


class Work:
    """Counts how often it was carried out; each time it makes something else."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> str:
        self.count += 1
        made = f"made-{self.count}"
        await anyio.lowlevel.checkpoint()
        return made


def request(key: str = "key", content: str = "content", owner: str = "ann") -> KeyedRequest:
    return KeyedRequest(owner, key, "POST /things", content)


async def test_the_same_request_has_one_effect() -> None:
    idempotency, work = Idempotency(MemoryRecords()), Work()
    assert await idempotency.once(request(), work) == Answer("made-1", is_replay=False)
    assert await idempotency.once(request(), work) == Answer("made-1", is_replay=True)
    assert work.count == 1


async def test_requests_at_the_same_time_have_one_effect() -> None:
    idempotency, work = Idempotency(MemoryRecords()), Work()
    answers: list[Answer] = []

    async def ask() -> None:
        answers.append(await idempotency.once(request(), work))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(ask)
    assert work.count == 1
    assert {answer.id for answer in answers} == {"made-1"}
    assert [answer.is_replay for answer in answers].count(False) == 1


async def test_a_key_stands_for_one_request() -> None:
    idempotency, work = Idempotency(MemoryRecords()), Work()
    await idempotency.once(request(), work)
    with pytest.raises(Conflict, match="another request"):
        await idempotency.once(request(content="else"), work)
    with pytest.raises(Conflict, match="another request"):
        await idempotency.once(KeyedRequest("ann", "key", "DELETE /things", "content"), work)
    assert work.count == 1


async def test_owners_do_not_share_keys() -> None:
    idempotency, work = Idempotency(MemoryRecords()), Work()
    await idempotency.once(request(owner="ann"), work)
    assert (await idempotency.once(request(owner="bob"), work)).id == "made-2"


async def test_a_failure_leaves_the_key_free() -> None:
    idempotency, work = Idempotency(MemoryRecords()), Work()

    async def fail() -> str:
        raise Unavailable("not now")

    with pytest.raises(Unavailable):
        await idempotency.once(request(), fail)
    assert await idempotency.once(request(), work) == Answer("made-1")


async def test_a_node_that_ended_in_between_is_not_repeated_blindly() -> None:
    records, work = MemoryRecords(), Work()
    records.remember(request().intent(None))
    with pytest.raises(Conflict, match="nobody can say"):
        await Idempotency(records).once(request(), work)
    assert work.count == 0


@pytest.mark.parametrize("was_made", [True, False])
async def test_an_intended_id_tells_whether_it_was_made(was_made: bool) -> None:
    records, work = MemoryRecords(), Work()
    records.remember(request().intent("intended"))

    async def exists(thing: str) -> bool:
        assert thing == "intended"
        return was_made

    answer = await Idempotency(records).once(request(), work, intended="new", exists=exists)
    expected = Answer("intended", is_replay=True) if was_made else Answer("made-1")
    assert (answer, work.count) == (expected, 0 if was_made else 1)


@pytest.mark.parametrize("key", ["", " ", "a b", "ä", "x" * 256, "new\nline"])
def test_a_key_that_cannot_be_one_is_refused(key: str) -> None:
    with pytest.raises(InvalidRequest):
        request(key=key)
