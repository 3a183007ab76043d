"""What a node remembers of sandboxes, executions, idempotency keys, secrets and users; here in memory, for embedded use.

Standard library only, besides the model: records that outlive the process are in `kept_records`.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import anyio

from atoll.errors import Conflict, InvalidRequest
from atoll.model.access import Scope, TokenKind, User
from atoll.model.ids import ExecutionId, SandboxId, TokenId, UserId, WorkspaceId
from atoll.model.sandbox import SandboxState

MOST_PER_PAGE = 1000


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """What is remembered of a sandbox. It lives until `ended_at` is set; `deadline` is of `clock.now`."""

    id: SandboxId
    owner: str
    engine: str
    template: str
    state: SandboxState
    created_at: float
    last_active_at: float
    name: str | None = None
    reason: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    ended_at: float | None = None
    deadline: float | None = None
    boot_id: str = ""
    idle_seconds: float | None = None
    generation: int = 1
    workspace: WorkspaceId | None = None
    node: str = ""  # filled in by records that several nodes may share


@dataclass(frozen=True, slots=True)
class ExecutionRecord:
    """What is remembered of a command, cell or terminal; its output is in its log."""

    id: ExecutionId
    sandbox: SandboxId
    owner: str
    kind: str
    state: str
    started_at: float
    what: Mapping[str, Any] = field(default_factory=dict)
    # Where its log is.
    book: str = ""
    section: int = 0
    ended_at: float | None = None
    outcome: Mapping[str, Any] | None = None
    events: str = ""  # all that came of it, if that is little; then it has no other log


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    """A request that must have its effect only once, and the id of what it made."""

    owner: str  # or one sandbox of an owner, whose tokens have keys of their own
    key: str
    method: str
    fingerprint: str  # of the whole request, so that a key cannot stand for two
    created_at: float
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class SecretRecord:
    """A secret as it is kept: sealed, with the id of the key that opens it."""

    owner: str
    name: str
    binding: Mapping[str, Any]
    key: str
    sealed: str
    created_at: float
    changed_at: float
    last_used_at: float | None = None


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token or a session as it is kept: with a hash of its text, which does not lead back to it."""

    id: TokenId
    user: UserId
    kind: TokenKind
    scope: Scope
    name: str
    digest: str = field(repr=False)
    created_at: float
    sandbox: SandboxId | None = None
    parent: TokenId | None = None  # what a session was opened with, and ends with
    expires_at: float | None = None
    last_used_at: float | None = None
    revoked_at: float | None = None
    # A hash of the shared secret that led to it, and with which it ends.
    shared_secret: str | None = field(default=None, repr=False)


Record: TypeAlias = (
    SandboxRecord | ExecutionRecord | IdempotencyRecord | SecretRecord | User | TokenRecord
)
Found = TypeVar("Found", SandboxRecord, ExecutionRecord)


@dataclass(frozen=True, slots=True)
class OwnerCounts:
    """How many sandboxes and executions of an owner are remembered."""

    sandboxes: int = 0
    executions: int = 0


@dataclass(frozen=True, slots=True)
class RecordPage(Generic[Found]):
    """Some of many records, and the cursor to ask for the next ones with; None at the end."""

    records: Sequence[Found]
    after: str | None = None


class Records(Protocol):
    """What a node remembers, and how it finds it again."""

    @property
    def is_healthy(self) -> bool:
        """Whether everything that is remembered can be read at present."""
        ...

    @property
    def reason(self) -> str:
        """Why it is not healthy."""
        ...

    async def open(self) -> None:
        """Make ready; what was remembered before is there again."""
        ...

    async def close(self) -> None:
        """Write out what has to be, and let go of everything."""
        ...

    async def settle_forever(self) -> None:
        """Do what has to be done in the background, until cancelled."""
        ...

    def remember(
        self, record: Record, key: IdempotencyRecord | None = None, *, sync: bool = False
    ) -> None:
        """Keep a record in place of the one with the same id; it is safe on return, and seen by reads.

        Args:
            record: what to keep.
            key: what it was asked for under, kept together with it or not at all.
            sync: it survives the end of the machine as well as that of the process.

        Raises:
            Conflict: another living sandbox of this owner has that name.
            Unavailable: it cannot be kept at present; nothing has changed.
        """
        ...

    def forget_key(self, owner: str, key: str) -> None:
        """Make a key free again; one that is not there is fine. Raises `Unavailable`."""
        ...

    def living(self) -> Sequence[SandboxRecord]:
        """Return the sandboxes of this node that have not ended, the oldest first."""
        ...

    def may_have_sandbox(self, sandbox_id: SandboxId) -> bool:
        """Whether there may have been a sandbox of this id; if not, that is certain, and costs next to nothing to learn."""
        ...

    async def find_sandbox(self, sandbox_id: SandboxId) -> SandboxRecord | None:
        """Return a sandbox, living or not; None if nothing is known of it. Raises `Unavailable`."""
        ...

    async def list_sandboxes(
        self,
        *,
        owner: str | None = None,
        states: Sequence[SandboxState] | None = None,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> RecordPage[SandboxRecord]:
        """Return sandboxes, the newest first. Raises `Unavailable`, and `InvalidRequest` for a bad cursor."""
        ...

    async def find_execution(self, execution_id: ExecutionId) -> ExecutionRecord | None:
        """Return an execution; None if nothing is known of it. Raises `Unavailable`."""
        ...

    async def list_executions(
        self,
        *,
        sandbox: SandboxId | None = None,
        owner: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> RecordPage[ExecutionRecord]:
        """Return executions, the newest first. Raises `Unavailable`, and `InvalidRequest` for a bad cursor."""
        ...

    async def running(self) -> Sequence[ExecutionRecord]:
        """Return the executions in this node's sandboxes that have not ended, the oldest first. Raises `Unavailable`."""
        ...

    async def find_key(self, owner: str, key: str) -> IdempotencyRecord | None:
        """Return what a key stands for; None if it is free. Raises `Unavailable`."""
        ...

    def forget_secret(self, owner: str, name: str) -> None:
        """Remove a secret, also from a machine that ends now; one that is not there is fine. Raises `Unavailable`."""
        ...

    async def find_secret(self, owner: str, name: str) -> SecretRecord | None:
        """Return a secret; None if there is none. Raises `Unavailable`."""
        ...

    async def list_secrets(self, owner: str | None = None) -> Sequence[SecretRecord]:
        """Return the secrets of an owner, or of all, by their names. Raises `Unavailable`."""
        ...

    async def count_by_owner(self, owner: str | None = None) -> Mapping[str, OwnerCounts]:
        """Return how much is remembered of one owner, or of each; of those who have nothing, nothing. Raises `Unavailable`."""
        ...

    async def list_users(self) -> Sequence[User]:
        """Return all users. Raises `Unavailable`."""
        ...

    async def list_tokens(self) -> Sequence[TokenRecord]:
        """Return all tokens and sessions. Raises `Unavailable`."""
        ...

    def forget_token(self, token_id: TokenId, *, sync: bool = True) -> None:
        """Remove a token, with `sync` also from a machine that ends now; one that is not there is fine. Raises `Unavailable`."""
        ...

    async def prune(self, *, before: float, keep: int) -> None:
        """Forget this node's sandboxes that ended before an instant or are not among the last `keep` to end.

        Their executions go with them, and keys that were made before that instant. Raises `Unavailable`.
        """
        ...

    async def books(self) -> AbstractSet[str]:
        """Return the books that hold logs of executions. Raises `Unavailable`."""
        ...


class LivingSandboxes:
    """The sandboxes that have not ended, and the names they hold."""

    def __init__(self) -> None:
        self._records: dict[SandboxId, SandboxRecord] = {}
        self._names: dict[tuple[str, str], SandboxId] = {}

    def __len__(self) -> int:
        return len(self._records)

    def find(self, sandbox_id: SandboxId) -> SandboxRecord | None:
        return self._records.get(sandbox_id)

    def list(self) -> Sequence[SandboxRecord]:
        """Return them, the oldest first."""
        return sorted(self._records.values(), key=place_of)

    def check_name(self, record: SandboxRecord) -> None:
        """Raise `Conflict` if another one of the same owner holds this record's name."""
        if record.name is None or record.ended_at is not None:
            return
        holder = self._names.get((record.owner, record.name), record.id)
        if holder != record.id:
            raise Conflict(
                f"{record.owner} has a living sandbox named {record.name!r} already; choose another name",
                sandbox=holder,
                name=record.name,
            )

    def take(self, record: SandboxRecord) -> None:
        """Keep a record, or drop that of a sandbox that has ended."""
        previous = self._records.pop(record.id, None)
        if previous is not None and previous.name is not None:
            self._names.pop((previous.owner, previous.name), None)
        if record.ended_at is None:
            self._records[record.id] = record
            if record.name is not None:
                self._names[record.owner, record.name] = record.id


class MemoryRecords:
    """Records that end with the process. Of what has ended only the newest are kept. May be used in any thread."""

    is_healthy = True
    reason = ""

    def __init__(self, *, keep_sandboxes: int = 1000, keep_executions: int = 10_000) -> None:
        self._keep_sandboxes = keep_sandboxes
        self._keep_executions = keep_executions
        self._guard = threading.Lock()
        self._living = LivingSandboxes()
        self._dead: dict[SandboxId, SandboxRecord] = {}  # in the order of their ends
        self._executions: dict[ExecutionId, ExecutionRecord] = {}
        self._ended: dict[ExecutionId, None] = {}  # in the order of their ends
        self._by_sandbox: dict[SandboxId, set[ExecutionId]] = {}
        self._keys: dict[tuple[str, str], IdempotencyRecord] = {}
        self._secrets: dict[tuple[str, str], SecretRecord] = {}
        self._users: dict[UserId, User] = {}
        self._tokens: dict[TokenId, TokenRecord] = {}

    async def open(self) -> None:
        """Nothing has to be made ready."""

    async def close(self) -> None:
        """Nothing has to be written out."""

    async def settle_forever(self) -> None:
        """Nothing has to be done in the background."""
        await anyio.sleep_forever()

    def remember(
        self, record: Record, key: IdempotencyRecord | None = None, *, sync: bool = False
    ) -> None:
        with self._guard:
            if key is not None:
                self._keys[key.owner, key.key] = key
            match record:
                case SandboxRecord():
                    self._remember_sandbox(record)
                case ExecutionRecord():
                    self._remember_execution(record)
                case IdempotencyRecord():
                    self._keys[record.owner, record.key] = record
                case SecretRecord():
                    self._secrets[record.owner, record.name] = record
                case User():
                    self._users[record.id] = record
                case TokenRecord():
                    self._tokens[record.id] = record

    def forget_key(self, owner: str, key: str) -> None:
        self._keys.pop((owner, key), None)

    def living(self) -> Sequence[SandboxRecord]:
        with self._guard:
            return self._living.list()

    def may_have_sandbox(self, sandbox_id: SandboxId) -> bool:
        return self._living.find(sandbox_id) is not None or sandbox_id in self._dead

    async def find_sandbox(self, sandbox_id: SandboxId) -> SandboxRecord | None:
        return self._living.find(sandbox_id) or self._dead.get(sandbox_id)

    async def list_sandboxes(
        self,
        *,
        owner: str | None = None,
        states: Sequence[SandboxState] | None = None,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> RecordPage[SandboxRecord]:
        with self._guard:
            known = [*self._living.list(), *self._dead.values()]
        wanted = (
            record
            for record in known
            if owner in (None, record.owner)
            and name in (None, record.name)
            and (states is None or record.state in states)
            and has_labels(record, labels)
        )
        return _page(wanted, limit, after)

    async def find_execution(self, execution_id: ExecutionId) -> ExecutionRecord | None:
        return self._executions.get(execution_id)

    async def list_executions(
        self,
        *,
        sandbox: SandboxId | None = None,
        owner: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> RecordPage[ExecutionRecord]:
        with self._guard:
            ids = self._executions if sandbox is None else self._by_sandbox.get(sandbox, ())
            known = [self._executions[each] for each in ids]
        wanted = (record for record in known if owner in (None, record.owner))
        return _page(wanted, limit, after)

    async def running(self) -> Sequence[ExecutionRecord]:
        with self._guard:
            known = [each for each in self._executions.values() if each.ended_at is None]
        return sorted(known, key=lambda each: each.started_at)

    async def find_key(self, owner: str, key: str) -> IdempotencyRecord | None:
        return self._keys.get((owner, key))

    def forget_secret(self, owner: str, name: str) -> None:
        with self._guard:
            self._secrets.pop((owner, name), None)

    async def find_secret(self, owner: str, name: str) -> SecretRecord | None:
        return self._secrets.get((owner, name))

    async def list_secrets(self, owner: str | None = None) -> Sequence[SecretRecord]:
        with self._guard:
            known = sorted(self._secrets.items())
        return [record for (whose, _), record in known if owner in (None, whose)]

    async def count_by_owner(self, owner: str | None = None) -> Mapping[str, OwnerCounts]:
        with self._guard:
            known = [*self._living.list(), *self._dead.values()]
            sandboxes = Counter(record.owner for record in known)
            executions = Counter(record.owner for record in self._executions.values())
        return join_counts(sandboxes, executions, owner)

    async def list_users(self) -> Sequence[User]:
        with self._guard:
            return list(self._users.values())

    async def list_tokens(self) -> Sequence[TokenRecord]:
        with self._guard:
            return list(self._tokens.values())

    def forget_token(self, token_id: TokenId, *, sync: bool = True) -> None:
        with self._guard:
            self._tokens.pop(token_id, None)

    async def prune(self, *, before: float, keep: int) -> None:
        with self._guard:
            for each in [key for key, record in self._keys.items() if record.created_at < before]:
                del self._keys[each]
            dead = sorted(self._dead.values(), key=_end_of, reverse=True)
            gone = [
                each
                for place, each in enumerate(dead)
                if place >= keep or _end_of(each)[0] < before
            ]
            for record in gone:
                self._drop_sandbox(record.id)

    async def books(self) -> AbstractSet[str]:
        with self._guard:
            return {record.book for record in self._executions.values()}

    def _remember_sandbox(self, record: SandboxRecord) -> None:
        self._living.check_name(record)
        self._living.take(record)
        if record.ended_at is None:
            self._dead.pop(record.id, None)
            return
        self._dead[record.id] = record
        while len(self._dead) > self._keep_sandboxes:
            self._drop_sandbox(next(iter(self._dead)))

    def _remember_execution(self, record: ExecutionRecord) -> None:
        self._executions[record.id] = record
        self._by_sandbox.setdefault(record.sandbox, set()).add(record.id)
        if record.ended_at is not None:
            self._ended[record.id] = None
        while len(self._ended) > self._keep_executions:
            self._drop_execution(next(iter(self._ended)))

    def _drop_sandbox(self, sandbox_id: SandboxId) -> None:
        del self._dead[sandbox_id]
        for execution in list(self._by_sandbox.get(sandbox_id, ())):
            self._drop_execution(execution)

    def _drop_execution(self, execution_id: ExecutionId) -> None:
        record = self._executions.pop(execution_id)
        self._ended.pop(execution_id, None)
        siblings = self._by_sandbox[record.sandbox]
        siblings.discard(execution_id)
        if not siblings:
            del self._by_sandbox[record.sandbox]


def join_counts(
    sandboxes: Mapping[str, int], executions: Mapping[str, int], owner: str | None
) -> Mapping[str, OwnerCounts]:
    """Return both counts together, of one owner or of all."""
    owners = sandboxes.keys() | executions.keys()
    return {
        each: OwnerCounts(sandboxes.get(each, 0), executions.get(each, 0))
        for each in owners
        if owner in (None, each)
    }


def has_labels(record: SandboxRecord | ExecutionRecord, labels: Mapping[str, str] | None) -> bool:
    """Whether a sandbox carries all these labels; other records carry none."""
    carried = record.labels if isinstance(record, SandboxRecord) else {}
    return all(carried.get(key) == value for key, value in (labels or {}).items())


def place_of(record: SandboxRecord | ExecutionRecord) -> tuple[float, str]:
    """Return what records are listed by: their beginning, then their id."""
    begun = record.started_at if isinstance(record, ExecutionRecord) else record.created_at
    return begun, record.id


def write_cursor(record: SandboxRecord | ExecutionRecord) -> str:
    """Return the cursor of a page that ends with this record."""
    begun, record_id = place_of(record)
    return f"{begun!r}_{record_id}"


def read_cursor(cursor: str) -> tuple[float, str]:
    """Return the place of the record that a page ended with, or raise `InvalidRequest`."""
    begun, separator, record_id = cursor.partition("_")
    try:
        place = float(begun), record_id
    except ValueError:
        separator = ""
    if not separator:
        raise InvalidRequest(f"cursor {cursor[:80]!r} is none; use what the page before came with")
    return place


def check_limit(limit: int) -> None:
    """Raise `InvalidRequest` unless a page may have so many records."""
    if type(limit) is not int or not 1 <= limit <= MOST_PER_PAGE:
        raise InvalidRequest(f"limit is {limit!r}; it has to be from 1 to {MOST_PER_PAGE}")


def make_page(records: Sequence[Found], limit: int) -> RecordPage[Found]:
    """Return a page of the first `limit` of these records; if there are more, with a cursor."""
    if len(records) <= limit:
        return RecordPage(records)
    return RecordPage(records[:limit], write_cursor(records[limit - 1]))


def _page(records: Iterable[Found], limit: int, after: str | None) -> RecordPage[Found]:
    check_limit(limit)
    if after is not None:
        place = read_cursor(after)
        records = (record for record in records if place_of(record) < place)
    return make_page(heapq.nlargest(limit + 1, records, key=place_of), limit)


def _end_of(record: SandboxRecord) -> tuple[float, str]:
    return record.ended_at or 0.0, record.id
