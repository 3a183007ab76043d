"""Idempotency keys: one effect for each, whatever happens."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from atoll.errors import Conflict, InvalidRequest, Unavailable
from atoll.node.idempotency import Answer, Idempotency, KeyedRequest
from atoll.node.records import IdempotencyRecord, MemoryRecords

pytestmark = pytest.mark.any_user


class Work:
    """Makes things under the ids that it is given, and knows which it made."""

    def __init__(self) -> None:
        self.made: list[str] = []

    async def make(self, thing: str) -> None:
        await anyio.lowlevel.checkpoint()
        self.made.append(thing)

    async def has_made(self, thing: str) -> bool:
        return thing in self.made


def request(key: str = "key", content: str = "content", owner: str = "ann") -> KeyedRequest:
    return KeyedRequest(owner, key, "POST /things", content)


async def ask(
    idempotency: Idempotency, work: Work, intended: str, asked: KeyedRequest | None = None
) -> Answer:
    return await idempotency.once(
        asked or request(), intended, lambda key: work.make(str(key.answer)), work.has_made
    )


async def test_the_same_request_has_one_effect() -> None:
    idempotency, work = Idempotency(MemoryRecords()), Work()
    assert await ask(idempotency, work, "first") == Answer("first", is_replay=False)
    assert await ask(idempotency, work, "second") == Answer("first", is_replay=True)
    assert work.made == ["first"]


async def test_requests_at_the_same_time_have_one_effect() -> None:
    idempotency, work = Idempotency(MemoryRecords()), Work()
    answers: list[Answer] = []

    async def ask_one(intended: str) -> None:
        answers.append(await ask(idempotency, work, intended))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(ask_one, f"thing {number}")
    assert len(work.made) == 1
    assert {answer.id for answer in answers} == set(work.made)
    assert [answer.is_replay for answer in answers].count(False) == 1


async def test_a_key_stands_for_one_request() -> None:
    idempotency, work = Idempotency(MemoryRecords()), Work()
    await ask(idempotency, work, "first")
    for other in (request(content="else"), KeyedRequest("ann", "key", "DELETE", "content")):
        with pytest.raises(Conflict, match="another request"):
            await ask(idempotency, work, "second", other)
    assert work.made == ["first"]


async def test_owners_do_not_share_keys() -> None:
    idempotency, work = Idempotency(MemoryRecords()), Work()
    await ask(idempotency, work, "first", request(owner="ann"))
    assert await ask(idempotency, work, "second", request(owner="bob")) == Answer("second")


async def test_a_failure_leaves_the_key_free() -> None:
    idempotency, work = Idempotency(MemoryRecords()), Work()

    async def fail(_key: IdempotencyRecord) -> None:
        raise Unavailable("not now")

    with pytest.raises(Unavailable):
        await idempotency.once(request(), "first", fail, work.has_made)
    assert await ask(idempotency, work, "second", request(content="else")) == Answer("second")


async def test_a_key_may_be_written_down_with_what_it_stands_for() -> None:
    records, work = MemoryRecords(), Work()
    idempotency = Idempotency(records)

    async def make_without(key: IdempotencyRecord) -> None:
        assert await records.find_key(key.owner, key.key) is None
        await work.make(str(key.answer))

    await idempotency.once(request(), "first", make_without, work.has_made, keeps_key=True)
    assert await records.find_key("ann", "key") is None


@pytest.mark.parametrize("was_made", [True, False])
async def test_a_node_that_ended_in_between_is_gone_on_with(was_made: bool) -> None:
    records, work = MemoryRecords(), Work()
    records.remember(request().intent("first"))
    if was_made:
        await work.make("first")
    answer = await ask(Idempotency(records), work, "second")
    assert answer == (Answer("first", is_replay=True) if was_made else Answer("second"))
    assert len(work.made) == 1


@pytest.mark.parametrize("key", ["", " ", "a b", "ä", "x" * 256, "new\nline"])
def test_a_key_that_cannot_be_one_is_refused(key: str) -> None:
    with pytest.raises(InvalidRequest):
        request(key=key)
