"""Stored secrets: sealed, bound to whose they are and where they go, and never shown."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from atoll.errors import InternalError, InvalidRequest, NotFound
from atoll.model.secret import Secret, new_placeholder
from atoll.node.kept_records import KeptRecords
from atoll.node.records import MemoryRecords, Records
from atoll.node.secrets import KeyFile, SecretKeys, SecretStore

pytestmark = pytest.mark.any_user

VALUE = "value-of-a-secret-that-is-looked-for"
SECRET = Secret(VALUE, ["api.example", "api.example:8443"], header="X-Api-Key", template="Key {}")


@pytest.fixture(params=["memory", "kept"])
async def records(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Records]:
    if request.param == "memory":
        yield MemoryRecords()
        return
    kept = KeptRecords.at(tmp_path, "here")
    await kept.open()
    yield kept
    await kept.close()


@pytest.fixture
def key_file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "secrets.key")


async def value_of(store: SecretStore, owner: str, name: str) -> str:
    return (await store.use(owner, name, "API_KEY", new_placeholder())).value


async def test_a_secret_is_used_and_listed_without_its_value(
    records: Records, key_file: KeyFile
) -> None:
    store = SecretStore(records, key_file)
    made = await store.set("ada", "key", SECRET)
    assert (made.name, made.owner, made.last_used_at) == ("key", "ada", None)
    placeholder = new_placeholder()
    use = await store.use("ada", "key", "API_KEY", placeholder)
    assert (use.name, use.placeholder, use.value) == ("API_KEY", placeholder, VALUE)
    assert use.binding == SECRET.binding()
    (listed,) = await store.list("ada")
    assert listed.hosts == ["api.example", "api.example:8443"]
    assert (listed.place, listed.field, listed.template) == ("header", "X-Api-Key", "Key {}")
    assert listed.last_used_at is not None
    assert VALUE not in str(listed) + repr(use)


async def test_another_owner_has_other_secrets(records: Records, key_file: KeyFile) -> None:
    store = SecretStore(records, key_file)
    await store.set("ada", "key", SECRET)
    await store.set("bob", "key", replace(SECRET, value="another-value"))
    assert await value_of(store, "ada", "key") == VALUE
    assert await value_of(store, "bob", "key") == "another-value"
    assert [each.owner for each in await store.list("bob")] == ["bob"]
    await store.remove("bob", "key")
    with pytest.raises(NotFound):
        await value_of(store, "bob", "key")
    assert await value_of(store, "ada", "key") == VALUE


async def test_setting_it_again_replaces_it(records: Records, key_file: KeyFile) -> None:
    store = SecretStore(records, key_file)
    first = await store.set("ada", "key", SECRET)
    second = await store.set("ada", "key", Secret("another-value", ["other.example"]))
    assert second.created_at == first.created_at
    assert second.hosts == ["other.example"]
    assert await value_of(store, "ada", "key") == "another-value"


async def test_one_that_is_removed_while_it_is_used_stays_removed(
    records: Records, key_file: KeyFile
) -> None:
    store = SecretStore(records, key_file)
    for _ in range(20):
        await store.set("ada", "key", SECRET)
        await store.list("ada")  # from here on the database has it, where looking takes a while

        async def use() -> None:
            with suppress(NotFound):
                await value_of(store, "ada", "key")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use)
            tasks.start_soon(store.remove, "ada", "key")
            tasks.start_soon(use)
            tasks.start_soon(store.rotate_key)
        assert await store.list("ada") == []


async def test_one_that_is_set_while_the_key_is_rotated_is_the_new_one(
    records: Records, key_file: KeyFile
) -> None:
    store = SecretStore(records, key_file)
    for number in range(20):
        await store.set("ada", "key", SECRET)
        await store.list("ada")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.rotate_key)
            tasks.start_soon(store.set, "ada", "key", replace(SECRET, value=f"new value {number}"))
        assert await value_of(store, "ada", "key") == f"new value {number}"


async def test_rotations_at_once_leave_every_secret_open(
    records: Records, key_file: KeyFile, tmp_path: Path
) -> None:
    store = SecretStore(records, key_file)
    await store.set("ada", "key", SECRET)
    await store.list("ada")
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(store.rotate_key)
            tasks.start_soon(value_of, store, "ada", "key")
    # As the next node finds it.
    assert (
        await value_of(SecretStore(records, KeyFile(tmp_path / "secrets.key")), "ada", "key")
        == VALUE
    )


async def test_what_is_not_there_cannot_be_used_or_removed(
    records: Records, key_file: KeyFile
) -> None:
    store = SecretStore(records, key_file)
    for call in (value_of(store, "ada", "key"), store.remove("ada", "key")):
        with pytest.raises(NotFound):
            await call
    with pytest.raises(InvalidRequest):
        await store.set("ada", "a/b", SECRET)


@pytest.mark.parametrize("field", ["owner", "name", "binding", "sealed"])
async def test_a_row_that_was_changed_does_not_open(
    records: Records, key_file: KeyFile, field: str
) -> None:
    store = SecretStore(records, key_file)
    await store.set("ada", "key", SECRET)
    await store.set("ada", "other", replace(SECRET, value="another-value"))
    found = await records.find_secret("ada", "key")
    other = await records.find_secret("ada", "other")
    assert found is not None and other is not None
    changes = {
        "owner": {"owner": "bob"},
        "name": {"name": "third"},
        "binding": {"binding": {**found.binding, "hosts": ["evil.example"]}},
        "sealed": {"sealed": other.sealed},
    }
    changed = replace(found, **changes[field])  # type: ignore[arg-type]
    records.remember(changed)
    with pytest.raises(InternalError, match="is not what was kept") as caught:
        await value_of(store, changed.owner, changed.name)
    assert VALUE not in str(caught.value)
    assert caught.value.__cause__ is None
    assert await value_of(store, "ada", "other") == "another-value"


async def test_the_key_is_in_a_file_of_its_own_for_its_owner_alone(
    tmp_path: Path, key_file: KeyFile
) -> None:
    store = SecretStore(MemoryRecords(), key_file)
    await store.set("ada", "key", SECRET)
    path = tmp_path / "secrets.key"
    assert path.stat().st_mode & 0o777 == 0o600
    os.chmod(path, 0o640)
    with pytest.raises(InternalError, match="read by others"):
        KeyFile(path).read()


@pytest.mark.parametrize("content", ["", "abc\n", "a b c\n", "k c2hvcnQ=\n"])
def test_a_damaged_file_of_keys_is_not_replaced(tmp_path: Path, content: str) -> None:
    path = tmp_path / "secrets.key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(InternalError, match="restore it"):
        KeyFile(path).read()
    assert path.read_text() == content


async def test_without_its_key_a_secret_does_not_open(records: Records, key_file: KeyFile) -> None:
    await SecretStore(records, key_file).set("ada", "key", SECRET)
    with pytest.raises(InternalError, match="the key of secret 'key' is gone"):
        await value_of(SecretStore(records, KeyFile()), "ada", "key")


async def test_a_rotated_key_opens_all_and_the_old_one_is_gone(
    records: Records, tmp_path: Path
) -> None:
    path = tmp_path / "secrets.key"
    store = SecretStore(records, KeyFile(path))
    for owner in ("ada", "bob"):
        await store.set(owner, "key", SECRET)
    old, sealed = path.read_text(), await records.find_secret("ada", "key")
    assert await store.rotate_key() == 2
    assert old.split()[1] not in path.read_text()
    resealed = await records.find_secret("ada", "key")
    assert sealed is not None and resealed is not None and resealed.sealed != sealed.sealed
    for owner in ("ada", "bob"):
        assert await value_of(SecretStore(records, KeyFile(path)), owner, "key") == VALUE


async def test_a_rotation_that_was_interrupted_loses_nothing(
    records: Records, tmp_path: Path
) -> None:
    path = tmp_path / "secrets.key"
    keys = KeyFile(path)
    store = SecretStore(records, keys)
    await store.set("ada", "key", SECRET)
    keys.write(keys.read().with_new())  # as far as it came
    again = SecretStore(records, KeyFile(path))
    assert await value_of(again, "ada", "key") == VALUE
    await again.rotate_key()
    assert await value_of(again, "ada", "key") == VALUE
    assert len(path.read_text().splitlines()) == 1


async def test_the_value_is_in_no_file(tmp_path: Path) -> None:
    records = KeptRecords.at(tmp_path, "here")
    await records.open()
    store = SecretStore(records, KeyFile(tmp_path / "secrets.key"))
    await store.set("ada", "key", SECRET)
    journal = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    await records.close()
    after = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"X-Api-Key" in journal and b"X-Api-Key" in after  # so it is what is looked at
    assert VALUE.encode() not in journal + after
    with closing(sqlite3.connect(tmp_path / "atoll.db")) as database:
        (row,) = database.execute("SELECT * FROM secrets").fetchall()
    assert VALUE not in str(row)


async def test_it_is_there_for_the_next_node(tmp_path: Path) -> None:
    for turn in range(3):
        records = KeptRecords.at(tmp_path, "here")
        await records.open()
        store = SecretStore(records, KeyFile(tmp_path / "secrets.key"))
        if turn == 0:
            await store.set("ada", "key", SECRET)
            await store.set("ada", "gone", SECRET)
            await store.remove("ada", "gone")
        assert [each.name for each in await store.list("ada")] == ["key"]
        assert await value_of(store, "ada", "key") == VALUE
        await records.close()


def test_no_text_of_keys_shows_them() -> None:
    keys = SecretKeys.new()
    assert str(keys.keys[keys.newest]) not in repr(keys)
