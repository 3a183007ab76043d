"""Users over HTTP: made, listed, disabled and enabled by admins alone."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from atoll.errors import Conflict, Forbidden, InvalidRequest, NotFound, Unauthorized
from atoll.model.access import Role, Scope
from tests.server.serving import Served, serving

pytestmark = pytest.mark.any_user


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as served:
        yield served


async def test_a_user_is_made_listed_disabled_and_enabled(served: Served) -> None:
    _, text = served.add_token(served.admin, Scope.ADMIN)
    async with served.client(text) as client:
        made = await client.call("POST", "/users", body={"name": "bob"})
        assert (made["name"], made["role"], made["disabled_at"]) == ("bob", "member", None)
        assert await client.call("GET", "/users/bob") == made
        assert await client.call("GET", f"/users/{made['id']}") == made
        names = [each["name"] for each in await client.call("GET", "/users")]
        assert names == ["admin", "bob"]
        token = await client.call("POST", "/tokens", body={"user": "bob", "name": "for bob"})
        assert token["user"] == made["id"]
        async with served.client(token["token"]) as own:
            assert (await own.call("GET", "/auth/me"))["name"] == "bob"
            disabled = await client.call("POST", "/users/bob/disable")
            assert disabled["disabled_at"] is not None
            with pytest.raises(Unauthorized):
                await own.call("GET", "/auth/me")
            await client.call("POST", "/users/bob/enable")
            assert (await own.call("GET", "/auth/me"))["name"] == "bob"
        listed = await client.call("GET", "/tokens", params={"user": "bob"})
        assert [each["id"] for each in listed] == [token["id"]]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"name": "admin"}, Conflict),
        ({"name": "local"}, Conflict),
        ({"name": "Not Plain"}, InvalidRequest),
        ({"name": "a" * 64}, InvalidRequest),
        ({"name": "bob", "role": "king"}, InvalidRequest),
        ({"name": "bob", "id": "local"}, InvalidRequest),
        ({}, InvalidRequest),
    ],
)
async def test_what_cannot_be_is_refused(
    served: Served, body: dict[str, Any], error: type[Exception]
) -> None:
    _, text = served.add_token(served.admin, Scope.ADMIN)
    async with served.client(text) as client:
        with pytest.raises(error):
            await client.call("POST", "/users", body=body)
        with pytest.raises(NotFound):
            await client.call("POST", "/users/nobody/disable")
        with pytest.raises(Forbidden, match="cannot be disabled"):
            await client.call("POST", "/users/admin/disable")
        assert len(await client.call("GET", "/users")) == 1


async def test_an_admin_with_a_lesser_token_changes_nobody(served: Served) -> None:
    boss = served.add_user("boss", Role.ADMIN)
    for scope in (Scope.MEMBER, Scope.READ):
        async with served.client(served.add_token(boss, scope)[1]) as client:
            with pytest.raises(Forbidden):
                await client.call("POST", "/users", body={"name": "bob"})
            with pytest.raises(Forbidden):
                await client.call("GET", "/users")
            # What is counted about the node is for every admin to see.
            await client.ask("GET", "/metrics")
    async with served.client(served.add_token(boss, Scope.ADMIN)[1]) as client:
        assert len(await client.call("GET", "/users")) == 2


async def test_users_have_names_for_themselves(served: Served) -> None:
    """Two of them may call their sandboxes, secrets and keys the same."""
    ids = {}
    for name in ("alice", "bob"):
        _, text = served.add_token(served.add_user(name))
        async with served.client(text) as client:
            made = await client.call(
                "POST",
                "/sandboxes",
                body={"template": "base", "name": "same"},
                headers={"Idempotency-Key": "same"},
            )
            ids[name] = made["id"]
            assert (await client.call("GET", "/sandboxes/same"))["id"] == made["id"]
            assert [each["id"] for each in await client.call("GET", "/sandboxes")] == [made["id"]]
    assert len({*ids.values()}) == 2


@pytest.fixture
def data() -> Iterator[Path]:
    # Not below pytest's own directory, whose path is longer than that of a socket may be.
    with tempfile.TemporaryDirectory(prefix="atoll-users-") as folder:
        yield Path(folder)


async def test_all_of_it_outlives_the_server(data: Path) -> None:
    async with serving(data) as served:
        bob = served.add_user("bob")
        _, text = served.add_token(bob)
        gone, void = served.add_token(bob)
        served.access.revoke_token(gone.id, bob.id)
    async with serving(data) as served:
        async with served.client(text) as client:
            assert (await client.call("GET", "/auth/me"))["name"] == "bob"
        async with served.client(void) as client:
            with pytest.raises(Unauthorized):
                await client.call("GET", "/auth/me")
