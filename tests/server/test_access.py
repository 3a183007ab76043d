"""Who comes in: what is shown, what that is worth, and how it ends."""

from __future__ import annotations

import hmac
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import anyio
import pytest
from starlette.datastructures import Headers

from atoll.errors import Conflict, Forbidden, InvalidRequest, LimitExceeded, NotFound, Unauthorized
from atoll.model.access import ADMIN_ID, OPERATOR, Caller, Role, Scope, TokenKind, User, Way
from atoll.model.ids import SandboxId, TokenId
from atoll.node.records import MemoryRecords
from atoll.server import tokens as server_tokens
from atoll.server.access import Access, AccessRules
from atoll.server.errors import Refusal

pytestmark = pytest.mark.any_user
DAY = 86400.0


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def records() -> MemoryRecords:
    return MemoryRecords()


@pytest.fixture
def access(records: MemoryRecords, clock: Clock) -> Access:
    access = Access(records, clock=clock)
    anyio.run(access.open)
    return access


@pytest.fixture
def bob(access: Access) -> User:
    return access.users.create("bob")


def bearer(text: str) -> Headers:
    return Headers({"Authorization": f"Bearer {text}"})


def cookie(text: str, name: str = "atoll_session") -> Headers:
    return Headers({"Cookie": f"other=1; {name}={text}"})


def is_let_in(access: Access, headers: Headers) -> bool:
    try:
        access.find_caller(headers)
    except Unauthorized:
        return False
    return True


def test_the_first_user_is_the_one_of_the_node(access: Access) -> None:
    (admin,) = access.users.list()
    assert (admin.id, admin.name, admin.role) == (ADMIN_ID, "admin", Role.ADMIN)
    text = access.create_first_token()
    assert text is not None
    caller = access.find_caller(bearer(text))
    assert (caller.owner, caller.scope, caller.way) == (OPERATOR.owner, Scope.ADMIN, Way.TOKEN)
    assert access.create_first_token() is None


def test_a_token_says_whose_it_is_and_what_it_is_for(access: Access, bob: User) -> None:
    sandbox = SandboxId("a" * 26)
    token, text = access.create_token(bob, Scope.SANDBOX, "for one", sandbox=sandbox)
    assert text.startswith(f"atoll_{token.id}_")
    assert len(text) == len("atoll_") + 12 + 1 + 43
    caller = Caller(bob.id, Scope.SANDBOX, Way.TOKEN, Role.MEMBER, sandbox, token.id)
    assert access.find_caller(bearer(text)) == caller
    assert access.find_caller(Headers({"authorization": f"bEaReR  {text} "})) == caller


def test_only_a_hash_is_kept(access: Access, records: MemoryRecords, bob: User) -> None:
    token, text = access.create_token(bob, Scope.MEMBER)
    secret = text.rpartition("_")[2]
    record = access.tokens.get(token.id)
    assert secret not in repr(record) + repr(vars(access)) + repr(records.__dict__)
    assert record is not None
    assert record.digest not in repr(record) + repr(token)


def test_two_tokens_have_nothing_in_common(access: Access, bob: User) -> None:
    texts = {access.create_token(bob, Scope.MEMBER)[1] for _ in range(50)}
    assert len({text[:18] for text in texts}) == len({text[-43:] for text in texts}) == 50


@pytest.mark.parametrize(
    "headers",
    [
        lambda text: Headers({}),
        lambda text: Headers({"Authorization": text}),
        lambda text: Headers({"Authorization": f"Basic {text}"}),
        lambda text: Headers({"Authorization": "Bearer"}),
        lambda text: bearer(text[:-1]),
        lambda text: bearer(text + "A"),
        lambda text: bearer(text.upper()),
        lambda text: bearer(text[:6] + "z" * 12 + text[18:]),
        lambda text: bearer(text[:-43] + "A" * 43),
        lambda text: bearer("\xe4" + text),
        lambda text: Headers(raw=[(b"authorization", f"Bearer {text}".encode())] * 2),
        lambda text: cookie(text),
        lambda text: Headers({"X-Api-Key": text, "Cookie": f"token={text}"}),
    ],
)
def test_nothing_but_a_valid_token_lets_in(
    access: Access, bob: User, headers: Callable[[str], Headers]
) -> None:
    _, text = access.create_token(bob, Scope.MEMBER)
    assert is_let_in(access, bearer(text))
    assert not is_let_in(access, headers(text))


def test_a_wrong_token_is_not_saved_by_a_cookie(access: Access, bob: User) -> None:
    _, text = access.create_token(bob, Scope.MEMBER)
    _, session = access.open_session(access.find_caller(bearer(text)))
    both = Headers({"Authorization": "Bearer wrong", "Cookie": f"atoll_session={session}"})
    assert is_let_in(access, cookie(session))
    assert not is_let_in(access, both)


def test_a_revoked_token_is_void_at_once_and_stays_so(access: Access, bob: User) -> None:
    token, text = access.create_token(bob, Scope.MEMBER)
    _, session = access.open_session(access.find_caller(bearer(text)))
    access.revoke_token(token.id, bob.id)
    assert not is_let_in(access, bearer(text))
    assert not is_let_in(access, cookie(session))
    access.revoke_token(token.id, bob.id)
    assert [each.id for each in access.tokens.list(bob.id)] == [token.id]


def test_nobody_revokes_what_is_anothers(access: Access, bob: User) -> None:
    token, text = access.create_token(bob, Scope.MEMBER)
    eve = access.users.create("eve")
    with pytest.raises(NotFound) as foreign:
        access.revoke_token(token.id, eve.id)
    with pytest.raises(NotFound) as missing:
        access.revoke_token(TokenId("a" * 12), eve.id)
    assert foreign.value.message.replace(token.id, "") == missing.value.message.replace(
        "a" * 12, ""
    )
    assert is_let_in(access, bearer(text))


def test_a_token_expires_to_the_second(access: Access, bob: User, clock: Clock) -> None:
    _, text = access.create_token(bob, Scope.MEMBER, expires_at=clock.now + 60)
    clock.now += 59.9
    assert is_let_in(access, bearer(text))
    clock.now += 0.2
    assert not is_let_in(access, bearer(text))
    with pytest.raises(InvalidRequest, match="expired already"):
        access.create_token(bob, Scope.MEMBER, expires_at=clock.now)


def test_a_disabled_user_is_kept_out_until_he_is_enabled(access: Access, bob: User) -> None:
    _, text = access.create_token(bob, Scope.MEMBER)
    _, session = access.open_session(access.find_caller(bearer(text)))
    access.disable_user("bob")
    assert not is_let_in(access, bearer(text))
    assert not is_let_in(access, cookie(session))
    access.users.enable(bob.id)
    assert is_let_in(access, bearer(text))
    # A browser has to show the token again.
    assert not is_let_in(access, cookie(session))


def test_the_first_user_cannot_be_disabled(access: Access) -> None:
    with pytest.raises(Forbidden, match="revoke its tokens"):
        access.disable_user("admin")


def test_a_token_gives_no_more_than_its_user_may(access: Access, bob: User) -> None:
    with pytest.raises(Forbidden, match="no admin"):
        access.create_token(bob, Scope.ADMIN)
    boss = access.users.create("boss", Role.ADMIN)
    _, text = access.create_token(boss, Scope.ADMIN)
    assert access.find_caller(bearer(text)).scope is Scope.ADMIN
    # As it is after somebody changed the row.
    access.users._users[boss.id] = User(boss.id, "boss", Role.MEMBER, 0.0)
    assert access.find_caller(bearer(text)).scope is Scope.MEMBER


def test_a_session_has_no_more_rights_and_lasts_no_longer(
    access: Access, bob: User, clock: Clock
) -> None:
    _, text = access.create_token(bob, Scope.READ, expires_at=clock.now + 3600)
    session, shown = access.open_session(access.find_caller(bearer(text)))
    assert (session.kind, session.scope) == (TokenKind.SESSION, Scope.READ)
    assert session.expires_at == clock.now + 3600
    assert access.find_caller(cookie(shown)).way is Way.SESSION
    _, lasting = access.create_token(bob, Scope.MEMBER)
    longer, other = access.open_session(access.find_caller(bearer(lasting)))
    assert longer.expires_at == clock.now + 12 * 3600
    clock.now += 12 * 3600
    assert not is_let_in(access, cookie(other))


def test_a_session_is_no_token_and_ends_with_logout(access: Access, bob: User) -> None:
    _, text = access.create_token(bob, Scope.MEMBER)
    _, shown = access.open_session(access.find_caller(bearer(text)))
    assert not is_let_in(access, bearer(shown))
    access.end_session(access.find_caller(cookie(shown)))
    assert not is_let_in(access, cookie(shown))
    assert is_let_in(access, bearer(text))


def test_a_cookie_that_stands_twice_is_none(access: Access, bob: User) -> None:
    _, text = access.create_token(bob, Scope.MEMBER)
    _, shown = access.open_session(access.find_caller(bearer(text)))
    pairs = ["atoll_session=atoll_x", f"atoll_session={shown}"]
    assert not is_let_in(access, Headers({"Cookie": "; ".join(pairs)}))
    assert not is_let_in(access, Headers({"Cookie": "; ".join(reversed(pairs))}))


async def test_over_https_only_a_cookie_of_this_host_counts(records: MemoryRecords) -> None:
    access = Access(records, AccessRules(is_secure=True))
    await access.open()
    _, shown = access.open_session(OPERATOR)
    assert is_let_in(access, cookie(shown, "__Host-atoll_session"))
    assert not is_let_in(access, cookie(shown))


async def test_the_shared_secret_is_the_first_user_without_an_admins_rights(
    records: MemoryRecords, clock: Clock
) -> None:
    rules = AccessRules(frozenset({"token", "secret"}), secret="correct horse")
    access = Access(records, rules, clock)
    await access.open()
    caller = access.find_caller(bearer("correct horse"))
    assert (caller.owner, caller.scope, caller.way) == (ADMIN_ID, Scope.MEMBER, Way.SECRET)
    assert not is_let_in(access, bearer("correct hors"))
    assert not is_let_in(access, bearer(""))
    _, shown = access.open_session(caller)
    assert is_let_in(access, cookie(shown))
    # Another start, maybe with another secret.
    again = Access(records, AccessRules(frozenset({"secret"}), secret="another"), clock)
    await again.open()
    assert not is_let_in(again, cookie(shown))
    assert not is_let_in(again, bearer("correct horse"))


async def test_what_the_shared_secret_led_to_ends_with_it(
    records: MemoryRecords, clock: Clock
) -> None:
    """Also by way of a session, and of a token that makes another; other tokens stay."""
    rules = AccessRules(frozenset({"token", "secret"}), secret="correct horse")
    access = Access(records, rules, clock)
    await access.open()
    admin = access.users.find("admin")
    make = partial(access.create_token, admin, Scope.MEMBER)
    by_secret = access.find_caller(bearer("correct horse"))
    session = access.find_caller(cookie(access.open_session(by_secret)[1]))
    led_to = [make(maker=by_secret)[1], make(maker=session)[1]]
    led_to.append(make(maker=access.find_caller(bearer(led_to[1])))[1])
    _, shown = access.open_session(access.find_caller(bearer(led_to[2])))
    _, other = make(maker=OPERATOR)
    for each in await records.list_tokens():
        assert "correct horse" not in f"{each} {each.shared_secret}"
    same = Access(records, rules, clock)
    await same.open()
    assert all(is_let_in(same, bearer(text)) for text in (*led_to, other))
    # One more after the start, which is kept as those before it.
    same.create_token(admin, Scope.MEMBER, maker=same.find_caller(bearer("correct horse")))
    assert len({each.shared_secret for each in await records.list_tokens()}) == 2
    changed = Access(records, replace(rules, secret="another"), clock)
    await changed.open()
    assert not any(is_let_in(changed, bearer(text)) for text in led_to)
    assert not is_let_in(changed, cookie(shown))
    assert is_let_in(changed, bearer(other))
    # What has ended stays so, whatever the secret is next.
    back = Access(records, rules, clock)
    await back.open()
    assert not any(is_let_in(back, bearer(text)) for text in led_to)


@pytest.mark.parametrize(
    "without",
    [
        AccessRules(frozenset({"token"})),
        AccessRules(frozenset({"token"}), secret="correct horse"),
    ],
    ids=["no secret", "not a way in"],
)
async def test_tokens_end_with_a_secret_that_lets_nobody_in_any_more(
    records: MemoryRecords, clock: Clock, without: AccessRules
) -> None:
    rules = AccessRules(frozenset({"token", "secret"}), secret="correct horse")
    access = Access(records, rules, clock)
    await access.open()
    maker = access.find_caller(bearer("correct horse"))
    token, text = access.create_token(access.users.find("admin"), Scope.MEMBER, maker=maker)
    later = Access(records, without, clock)
    await later.open()
    assert not is_let_in(later, bearer(text))
    (listed,) = later.tokens.list(token.user)
    assert listed.revoked_at is not None


async def test_only_the_ways_that_are_open_let_in(records: MemoryRecords) -> None:
    access = Access(records, AccessRules(frozenset({"github"}), secret="correct horse"))
    await access.open()
    _, text = access.create_token(access.users.find("admin"), Scope.MEMBER)
    assert not is_let_in(access, bearer(text))
    assert not is_let_in(access, bearer("correct horse"))


async def test_none_lets_everybody_in_as_the_first_user(records: MemoryRecords) -> None:
    access = Access(records, AccessRules(frozenset({"none"})))
    await access.open()
    caller = access.find_caller(Headers({}))
    assert (caller.owner, caller.scope, caller.way) == (ADMIN_ID, Scope.MEMBER, Way.NONE)


def test_a_ticket_lets_in_once_and_within_ten_minutes(access: Access, clock: Clock) -> None:
    first, second, late = (access.tickets.make(OPERATOR) for _ in range(3))
    assert access.take_ticket(second) == OPERATOR
    with pytest.raises(Unauthorized, match="has been used"):
        access.take_ticket(second)
    with pytest.raises(Unauthorized):
        access.take_ticket(first[:-1])
    assert access.take_ticket(first) == OPERATOR
    clock.now += 600
    with pytest.raises(Unauthorized):
        access.take_ticket(late)


async def test_all_of_it_is_there_after_a_restart(
    access: Access, records: MemoryRecords, bob: User, clock: Clock
) -> None:
    kept, text = access.create_token(bob, Scope.READ, "kept")
    revoked, void = access.create_token(bob, Scope.MEMBER)
    access.revoke_token(revoked.id, bob.id)
    _, session = access.open_session(access.find_caller(bearer(text)))
    access.users.create("gone")
    access.disable_user("gone")
    again = Access(records, clock=clock)
    await again.open()
    assert again.find_caller(bearer(text)).token == kept.id
    assert is_let_in(again, cookie(session))
    assert not is_let_in(again, bearer(void))
    found = {user.name: user.is_disabled for user in again.users.list()}
    assert found == {"admin": False, "bob": False, "gone": True}
    assert again.create_first_token() is None


async def test_what_is_void_for_long_is_forgotten(
    access: Access, records: MemoryRecords, bob: User, clock: Clock
) -> None:
    revoked, _ = access.create_token(bob, Scope.MEMBER)
    access.revoke_token(revoked.id, bob.id)
    access.create_token(bob, Scope.MEMBER, expires_at=clock.now + DAY)
    access.open_session(Caller(bob.id, Scope.MEMBER, Way.SESSION))
    kept, _ = access.create_token(bob, Scope.MEMBER)
    clock.now += 29 * DAY
    access.create_token(bob, Scope.MEMBER)
    assert len(access.tokens.list(bob.id)) == 4
    clock.now += 3 * DAY
    again = Access(records, clock=clock)
    await again.open()
    left = {token.id for token in again.tokens.list(bob.id)}
    assert kept.id in left
    assert len(left) == len(await records.list_tokens()) == 2


def test_the_use_of_a_token_is_written_down_now_and_then(
    access: Access, bob: User, clock: Clock
) -> None:
    _, text = access.create_token(bob, Scope.MEMBER)

    def last_used() -> float | None:
        return access.tokens.list(bob.id)[0].last_used_at

    assert last_used() is None
    access.find_caller(bearer(text))
    first = last_used()
    assert first == clock.now
    clock.now += 30
    access.find_caller(bearer(text))
    assert last_used() == first
    clock.now += 31
    access.find_caller(bearer(text))
    assert last_used() == clock.now
    assert not is_let_in(access, bearer(text[:-1] + "-"))


def test_names_are_plain_and_belong_to_one(access: Access, bob: User) -> None:
    with pytest.raises(Conflict, match="already"):
        access.users.create("bob")
    with pytest.raises(Conflict, match="already"):
        # Otherwise it would be found in the place of the first user.
        access.users.create("local")
    for name in ("", "Bob", "a b", "-a", "ä", "a" * 64, "a\n"):
        with pytest.raises(InvalidRequest, match="user name"):
            access.users.create(name)
    with pytest.raises(InvalidRequest, match="name"):
        access.create_token(bob, Scope.MEMBER, "line\nend")


def test_a_user_has_so_many_tokens_and_sessions_at_most(
    access: Access, bob: User, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(server_tokens, "_MOST", {TokenKind.TOKEN: 3, TokenKind.SESSION: 2})
    texts = [access.create_token(bob, Scope.MEMBER)[1] for _ in range(3)]
    with pytest.raises(LimitExceeded, match="the most"):
        access.create_token(bob, Scope.MEMBER)
    gone = access.find_caller(bearer(texts.pop())).token
    assert gone is not None
    access.revoke_token(gone, bob.id)
    texts.append(access.create_token(bob, Scope.MEMBER)[1])
    sessions = []
    for text in (texts[0], texts[1], texts[1], texts[1]):
        clock.now += 1
        sessions.append(access.open_session(access.find_caller(bearer(text)))[1])
    # The oldest of the same token makes way, never one of another.
    assert [is_let_in(access, cookie(each)) for each in sessions] == [True, False, True, True]


def test_wrong_guesses_are_slowed_down_and_keep_nobody_out(access: Access, bob: User) -> None:
    text = access.create_token(bob, Scope.MEMBER)[1]
    for _ in range(10):
        with pytest.raises(Unauthorized):
            access.find_shown("a guess", "192.0.2.1")
    with pytest.raises(Refusal) as refused:
        access.find_shown("a guess", "192.0.2.1")
    assert refused.value.status == 429
    assert access.find_shown(text, "192.0.2.1").owner == bob.id
    with pytest.raises(Unauthorized):
        access.find_shown("a guess", "192.0.2.2")


# --- time ---------------------------------------------------------------------------------------------------


def wrong_ones(access: Access, bob: User) -> dict[str, str]:
    """Return texts that are wrong in different ways."""
    text = access.create_token(bob, Scope.MEMBER)[1]
    revoked, void = access.create_token(bob, Scope.MEMBER)
    access.revoke_token(revoked.id, bob.id)
    secret = len(text) - 43
    swap = {"A": "B"}
    return {
        "first": text[:secret] + swap.get(text[secret], "A") + text[secret + 1 :],
        "last": text[:-1] + swap.get(text[-1], "A"),
        "unknown": f"atoll_{'0' * 12}_{text[-43:]}",
        "revoked": void,
    }


def test_all_that_is_wrong_takes_the_same_work(
    access: Access, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same hashes and the same comparison, whose time does not depend on where two differ."""
    wrong = wrong_ones(access, bob)
    work: list[str] = []
    digest, compare = server_tokens.digest_of, hmac.compare_digest

    def noted_digest(text: str) -> str:
        work.append(f"hash of {len(text)}")
        return digest(text)

    def noted_compare(one: str, other: str) -> bool:
        work.append(f"compare {len(one)} with {len(other)}")
        return compare(one, other)

    monkeypatch.setattr(server_tokens, "digest_of", noted_digest)
    monkeypatch.setattr(hmac, "compare_digest", noted_compare)
    seen = {}
    for name, text in wrong.items():
        work.clear()
        assert not is_let_in(access, bearer(text))
        seen[name] = tuple(work)
    assert set(seen.values()) == {("hash of 62", "compare 64 with 64")}, seen


def test_what_is_wrong_cannot_be_told_by_time(access: Access, bob: User) -> None:
    """2,000 tries of each kind, interleaved: they differ by no more than two halves of one kind, or a tenth."""
    wrong = {name: bearer(text) for name, text in wrong_ones(access, bob).items()}
    wrong |= {f"{name} again": headers for name, headers in wrong.items()}
    # A busy machine may spoil one run, but not make the same difference in all of them.
    for _ in range(5):
        medians = {name: statistics.median(times) for name, times in measure(access, wrong).items()}
        noise = max(abs(medians[name] - medians[f"{name} again"]) for name in list(wrong)[:4])
        difference = max(medians.values()) - min(medians.values())
        if difference <= max(3 * noise, 0.1 * min(medians.values())):
            return
    raise AssertionError(f"it can be told by time: {medians}")


def measure(access: Access, shown: dict[str, Headers]) -> dict[str, Sequence[int]]:
    times: dict[str, list[int]] = {name: [] for name in shown}
    for name, headers in rounds(shown, 2000):
        begun = time.perf_counter_ns()
        try:
            access.find_caller(headers)
        except Unauthorized:
            times[name].append(time.perf_counter_ns() - begun)
    assert {len(each) for each in times.values()} == {2000}
    return dict(times)


def rounds(shown: dict[str, Headers], count: int) -> Iterator[tuple[str, Headers]]:
    """Yield all so many times, each time beginning with another: the first one of a round is the slowest."""
    every = list(shown.items())
    for turn in range(count):
        place = turn % len(every)
        yield from every[place:] + every[:place]
