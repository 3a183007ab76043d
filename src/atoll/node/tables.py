"""The tables that records are kept in, and how a record becomes a row; migrations make them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, TypeVar

from sqlalchemy import (
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.types import BigInteger, TypeDecorator

from atoll.model.access import Role, Scope, TokenKind, User
from atoll.model.sandbox import SandboxState
from atoll.node.json_text import to_json
from atoll.node.records import (
    ExecutionRecord,
    IdempotencyRecord,
    Record,
    SandboxRecord,
    SecretRecord,
    TokenRecord,
)

Kind = TypeVar("Kind", bound=Record)


class PlainText(TypeDecorator[str]):
    """Text that every database takes: PostgreSQL knows no NUL, and UTF-8 no half of a character."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        # A member of an enumeration goes as its value.
        plain = str.__str__(value).replace("\0", "\N{REPLACEMENT CHARACTER}")
        return plain.encode(errors="replace").decode()


class Json(TypeDecorator[Any]):
    """A value as JSON."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else to_json(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


METADATA = MetaData()

NODES = Table(
    "nodes",
    METADATA,
    Column("id", PlainText, primary_key=True),
    # The last entry of the node's journal that is in here.
    Column("settled", BigInteger, nullable=False),
)

SANDBOXES = Table(
    "sandboxes",
    METADATA,
    Column("id", PlainText, primary_key=True),
    Column("node", PlainText, ForeignKey("nodes.id"), nullable=False),
    Column("owner", PlainText, nullable=False),
    Column("name", PlainText),
    Column("engine", PlainText, nullable=False),
    Column("template", PlainText, nullable=False),
    Column("state", PlainText, nullable=False),
    Column("reason", PlainText, nullable=False),
    Column("labels", Json, nullable=False),
    Column("metadata", Json, nullable=False),
    Column("spec", Json, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("last_active_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("deadline", Double),
    Column("boot_id", PlainText, nullable=False),
    Column("idle_seconds", Double),
    Column("generation", Integer, nullable=False),
    Column("workspace", PlainText),
    Index("sandboxes_newest", "created_at", "id"),
    Index("sandboxes_of_owner", "owner", "created_at", "id"),
    Index("sandboxes_ended", "node", "ended_at"),
)
Index(
    "sandboxes_living_names",
    SANDBOXES.c.node,
    SANDBOXES.c.owner,
    SANDBOXES.c.name,
    unique=True,
    sqlite_where=text("ended_at IS NULL"),
    postgresql_where=text("ended_at IS NULL"),
)

EXECUTIONS = Table(
    "executions",
    METADATA,
    Column("id", PlainText, primary_key=True),
    # No foreign key: an execution may end after its sandbox has been forgotten.
    Column("sandbox", PlainText, nullable=False),
    Column("owner", PlainText, nullable=False),
    Column("kind", PlainText, nullable=False),
    Column("what", Json, nullable=False),
    Column("book", PlainText, nullable=False),
    Column("section", BigInteger, nullable=False),
    Column("state", PlainText, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("outcome", Json),
    Column("events", PlainText, nullable=False, server_default=""),
    Index("executions_newest", "started_at", "id"),
    Index("executions_of_sandbox", "sandbox", "started_at", "id"),
    Index("executions_of_owner", "owner", "started_at", "id"),
    Index("executions_in_books", "book"),
)

IDEMPOTENCY_KEYS = Table(
    "idempotency_keys",
    METADATA,
    Column("owner", PlainText, primary_key=True),
    Column("key", PlainText, primary_key=True),
    Column("method", PlainText, nullable=False),
    Column("fingerprint", PlainText, nullable=False),
    Column("answer", PlainText),
    Column("created_at", Double, nullable=False),
    Index("idempotency_keys_oldest", "created_at"),
)

SECRETS = Table(
    "secrets",
    METADATA,
    Column("owner", PlainText, primary_key=True),
    Column("name", PlainText, primary_key=True),
    Column("binding", Json, nullable=False),
    Column("key", PlainText, nullable=False),
    Column("sealed", PlainText, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("changed_at", Double, nullable=False),
    Column("last_used_at", Double),
)

# Names are unique among those that one node knows: nodes that share a database must never refuse each other's rows.
USERS = Table(
    "users",
    METADATA,
    Column("id", PlainText, primary_key=True),
    Column("name", PlainText, nullable=False),
    Column("role", PlainText, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("disabled_at", Double),
    Column("github", PlainText),
)

TOKENS = Table(
    "tokens",
    METADATA,
    Column("id", PlainText, primary_key=True),
    Column("user", PlainText, nullable=False),
    Column("kind", PlainText, nullable=False),
    Column("scope", PlainText, nullable=False),
    Column("name", PlainText, nullable=False),
    Column("digest", PlainText, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("sandbox", PlainText),
    Column("parent", PlainText),
    Column("expires_at", Double),
    Column("last_used_at", Double),
    Column("revoked_at", Double),
    Column("shared_secret", PlainText),
)

TABLES: Mapping[type[Any], Table] = {
    SandboxRecord: SANDBOXES,
    ExecutionRecord: EXECUTIONS,
    IdempotencyRecord: IDEMPOTENCY_KEYS,
    SecretRecord: SECRETS,
    User: USERS,
    TokenRecord: TOKENS,
}
# Texts that mean one of a few.
_WORDS: Mapping[type[Any], Mapping[str, Callable[[str], StrEnum]]] = {
    SandboxRecord: {"state": SandboxState},
    User: {"role": Role},
    TokenRecord: {"kind": TokenKind, "scope": Scope},
}
_NAMES = {kind: tuple(each.name for each in fields(kind)) for kind in TABLES}


def to_fields(record: Record) -> dict[str, Any]:
    """Return a record's values by name, as `from_fields` takes them."""
    return {name: getattr(record, name) for name in _NAMES[type(record)]}


def from_fields(kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """Return the record with these values."""
    words = {name: read(values[name]) for name, read in _WORDS.get(kind, {}).items()}
    return kind(**{**values, **words})
