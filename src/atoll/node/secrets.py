"""Stored secrets: written and used, never shown. Each is sealed with a key that lies in a file of its own, outside of the database.

What is sealed with a value is whose it is, its name and where it goes: a row that somebody copied to another owner, or bound to
another host, does not open any more.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from atoll.errors import InternalError, LimitExceeded, NotFound, Unavailable, Unsupported
from atoll.model.secret import Secret, SecretBinding, SecretInfo, SecretUse, check_secret_name
from atoll.node.records import Records, SecretRecord

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_KEY_BYTES, _NONCE_BYTES = 32, 12
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_MOST_PER_OWNER = 1000
# Says what is sealed together, in case that ever becomes something else.
_FORMAT = "atoll-secret-1"

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class SecretKeys:
    """The keys by their ids; the last one seals, all of them open."""

    keys: Mapping[str, bytes] = field(repr=False)

    @classmethod
    def new(cls) -> SecretKeys:
        """Return a first key."""
        return cls({}).with_new()

    @property
    def newest(self) -> str:
        """The id of the key that seals."""
        return list(self.keys)[-1]

    def with_new(self) -> SecretKeys:
        """Return them with one more, which seals from then on."""
        return SecretKeys({**self.keys, os.urandom(8).hex(): os.urandom(_KEY_BYTES)})

    def newest_only(self) -> SecretKeys:
        """Return them without those that open only."""
        return SecretKeys({self.newest: self.keys[self.newest]})


class KeyFile:
    """Keys in a file that its owner alone can read; made at the first use. Without a path, in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._keys: SecretKeys | None = None

    def read(self) -> SecretKeys:
        """Return the keys; raises `Unavailable` if there can be none, `InternalError` for a file that holds none."""
        if self._keys is None:
            self._keys = self._load()
        return self._keys

    def write(self, keys: SecretKeys) -> None:
        """Keep these keys from now on, also if the machine ends now."""
        if self._path is not None:
            try:
                _replace_file(self._path, _render(keys))
            except OSError as error:
                raise Unavailable(
                    f"the keys of secrets cannot be written to {self._path}: {error.strerror}"
                ) from error
        self._keys = keys

    def _load(self) -> SecretKeys:
        if self._path is None:
            return SecretKeys.new()
        try:
            if self._path.stat().st_mode & 0o077:
                raise InternalError(
                    f"{self._path} can be read by others; chmod 600 it, and rotate the key of secrets"
                )
            return _parse(self._path)
        except FileNotFoundError:
            self.write(SecretKeys.new())
            assert self._keys is not None
            return self._keys
        except OSError as error:
            raise Unavailable(
                f"the keys of secrets in {self._path} cannot be read: {error.strerror}"
            ) from error


class SecretStore:
    """The secrets of a node's owners."""

    def __init__(self, records: Records, keys: KeyFile) -> None:
        self._records = records
        self._keys = keys
        self._rotating = anyio.Lock()
        self._changes = 0  # so far; what was read before one of them may be void

    async def set(self, owner: str, name: str, secret: Secret) -> SecretInfo:
        """Keep a secret under a name, in place of one that was there; it is safe on return.

        Raises:
            LimitExceeded: the owner has as many as there may be.
            Unavailable: it cannot be kept at present.
            Unsupported: `cryptography` is not installed.
        """
        check_secret_name(name)
        known = await self._records.find_secret(owner, name)
        if known is None:
            await self._check_room(owner)
        now, binding = time.time(), secret.binding().to_json()
        keys = self._keys.read()
        record = SecretRecord(
            owner=owner,
            name=name,
            binding=binding,
            key=keys.newest,
            sealed=_seal(keys, owner, name, binding, secret.value),
            created_at=now if known is None else known.created_at,
            changed_at=now,
            last_used_at=None if known is None else known.last_used_at,
        )
        self._records.remember(record, sync=True)
        self._changes += 1
        return _describe(record)

    async def list(self, owner: str) -> Sequence[SecretInfo]:
        """Return facts about an owner's secrets, by their names."""
        return [_describe(record) for record in await self._records.list_secrets(owner)]

    async def remove(self, owner: str, name: str) -> None:
        """Forget a secret for good; raises `NotFound`."""
        await self._find(owner, name)
        self._records.forget_secret(owner, name)
        self._changes += 1

    async def use(self, owner: str, name: str, variable: str, placeholder: str) -> SecretUse:
        """Return a secret for a sandbox of its owner, for the proxy alone.

        Raises:
            NotFound: there is none.
            InternalError: what is kept is not what was sealed, or its key is gone.
        """
        record = await self._unchanged(partial(self._find, owner, name))
        value = _open(self._keys.read(), record)
        # Never one that was removed while it was looked for: that would bring it back.
        self._records.remember(replace(record, last_used_at=time.time()))
        return SecretUse(variable, placeholder, SecretBinding.from_json(record.binding), value)

    async def rotate_key(self) -> int:
        """Seal all secrets with a new key and forget the old ones; returns how many there are.

        Wherever it is interrupted, every secret still opens, and rotating again finishes it.
        """
        # One at a time: each forgets all keys but its own.
        async with self._rotating:
            return await self._rotate_key()

    async def _rotate_key(self) -> int:
        keys = self._keys.read().with_new()
        # First the new key, then what it seals, then the end of the old ones.
        self._keys.write(keys)
        records = await self._unchanged(self._records.list_secrets)
        for record in records:
            value = _open(keys, record)
            sealed = _seal(keys, record.owner, record.name, record.binding, value)
            self._records.remember(replace(record, key=keys.newest, sealed=sealed), sync=True)
        self._changes += 1
        self._keys.write(keys.newest_only())
        return len(records)

    async def _unchanged(self, read: Callable[[], Awaitable[Found]]) -> Found:
        """Return what is read, once nothing was changed meanwhile."""
        while True:
            changes = self._changes
            found = await read()
            if changes == self._changes:
                return found

    async def _find(self, owner: str, name: str) -> SecretRecord:
        check_secret_name(name)
        record = await self._records.find_secret(owner, name)
        if record is None:
            raise NotFound(
                f"there is no secret {name!r}; 'atoll secret set {name} --host …' makes one",
                secret=name,
            )
        return record

    async def _check_room(self, owner: str) -> None:
        if len(await self._records.list_secrets(owner)) >= _MOST_PER_OWNER:
            raise LimitExceeded(
                f"{owner} has {_MOST_PER_OWNER} secrets, which is the most; remove some first",
                limit=_MOST_PER_OWNER,
            )


def _describe(record: SecretRecord) -> SecretInfo:
    binding = SecretBinding.from_json(record.binding).to_json()
    return SecretInfo(
        name=record.name,
        owner=record.owner,
        created_at=record.created_at,
        changed_at=record.changed_at,
        last_used_at=record.last_used_at,
        **binding,
    )


# --- sealing ------------------------------------------------------------------------------------------------


def _seal(keys: SecretKeys, owner: str, name: str, binding: Mapping[str, Any], value: str) -> str:
    nonce = os.urandom(_NONCE_BYTES)
    sealed = _cipher(keys.keys[keys.newest]).encrypt(
        nonce, value.encode(), _context(owner, name, binding)
    )
    return base64.b64encode(nonce + sealed).decode()


def _open(keys: SecretKeys, record: SecretRecord) -> str:
    key = keys.keys.get(record.key)
    if key is None:
        raise InternalError(
            f"the key of secret {record.name!r} is gone; restore the file of keys, or set the secret anew",
            secret=record.name,
        )
    from cryptography.exceptions import InvalidTag

    try:
        data = base64.b64decode(record.sealed, validate=True)
        context = _context(record.owner, record.name, record.binding)
        nonce, sealed = data[:_NONCE_BYTES], data[_NONCE_BYTES:]
        return _cipher(key).decrypt(nonce, sealed, context).decode()
    except (InvalidTag, ValueError):
        # Without the cause, which could show what is kept.
        raise InternalError(
            f"secret {record.name!r} is not what was kept: the database was changed; set it anew",
            secret=record.name,
        ) from None


def _context(owner: str, name: str, binding: Mapping[str, Any]) -> bytes:
    return json.dumps([_FORMAT, owner, name, binding], sort_keys=True).encode()


def _cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError as error:
        raise Unsupported(
            "secrets need the package cryptography; pip install 'atoll[egress]'"
        ) from error
    return AESGCM(key)


# --- the file of keys ---------------------------------------------------------------------------------------


def _render(keys: SecretKeys) -> bytes:
    lines = [f"{name} {base64.b64encode(key).decode()}\n" for name, key in keys.keys.items()]
    return "".join(lines).encode()


def _parse(path: Path) -> SecretKeys:
    keys: dict[str, bytes] = {}
    try:
        for line in path.read_text("ascii").splitlines():
            name, coded = line.split()
            keys[name] = base64.b64decode(coded, validate=True)
    except ValueError:
        keys = {}
    if not keys or any(len(key) != _KEY_BYTES for key in keys.values()):
        raise InternalError(f"{path} does not hold the keys of secrets; restore it from a copy")
    return SecretKeys(keys)


def _replace_file(path: Path, content: bytes) -> None:
    """Write a file for its owner alone; whoever reads it sees all of it or what was there before."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, _FLAGS, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
