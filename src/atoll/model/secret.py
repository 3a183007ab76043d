"""Secrets that sandboxes use and never see: to whom one goes, where it is put, and what stands for it inside."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from atoll.errors import InvalidRequest
from atoll.model.hosts import Host, parse_authority

Place = Literal["header", "query", "body"]

MOST_SECRETS = 32
SHORTEST_VALUE, LONGEST_VALUE = 8, 8192

_MOST_HOSTS = 16
_HTTPS_PORT = 443
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_FIELDS: dict[Place, re.Pattern[str]] = {
    "header": re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,80}"),
    "query": re.compile(r"[ -~]{1,80}"),
    "body": re.compile(r"[ -~]{1,200}"),
}
# They say for whom a message is and where it ends.
_FRAMING = {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"}
_TEMPLATE = re.compile(r"[ -z|~]*\{\}[ -z|~]*")


@dataclass(frozen=True, slots=True)
class SecretBinding:
    """To which hosts a secret goes, always over TLS, and in which one place of a request.

    `field` names a header, a field of the query, or one of the body: of a form, or of JSON with dots between its steps
    (`auth.key`). A `template` such as `Bearer {}` is what the place holds afterwards; without one the placeholder alone is replaced.
    """

    hosts: tuple[tuple[Host, int], ...]
    place: Place = "header"
    field: str = "Authorization"
    template: str = ""

    def __post_init__(self) -> None:
        if not 1 <= len(self.hosts) <= _MOST_HOSTS:
            raise InvalidRequest(
                f"a secret goes to 1 to {_MOST_HOSTS} hosts, not to {len(self.hosts)};"
                " name them like 'api.example' or 'api.example:8443'"
            )
        if self.place not in get_args(Place):
            raise InvalidRequest(f"{str(self.place)[:80]!r} is none of header, query and body")
        if not isinstance(self.field, str) or not _FIELDS[self.place].fullmatch(self.field):
            raise InvalidRequest(f"{str(self.field)[:80]!r} cannot be the name of a {self.place}")
        if self.place == "header" and self.field.lower() in _FRAMING:
            raise InvalidRequest(f"no secret can be put into the header {self.field!r}")
        if self.template and not _TEMPLATE.fullmatch(self.template):
            raise InvalidRequest(
                f"template {self.template[:80]!r} has to hold '{{}}' once, like 'Bearer {{}}'"
            )

    def goes_to(self, host: Host, port: int) -> bool:
        """Tell whether the secret is for this host."""
        return (host, port) in self.hosts

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values, for `from_json`."""
        return {
            "hosts": [_show(host, port) for host, port in self.hosts],
            "place": self.place,
            "field": self.field,
            "template": self.template,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> SecretBinding:
        """Return the binding that `to_json` wrote; raise `InvalidRequest` for anything else."""
        try:
            return cls(
                _parse_hosts(fields["hosts"]),
                cast(Place, fields["place"]),
                fields["field"],
                fields["template"],
            )
        except (KeyError, TypeError) as error:
            raise InvalidRequest(f"this is no binding of a secret: {str(error)[:200]}") from error


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret for sandboxes: its value, and the hosts that are to receive it.

    It goes into one header (`Authorization` if nothing is said), one field of the query, or one of the body.
    """

    value: str = field(repr=False)
    hosts: Sequence[str]
    header: str | None = None
    query: str | None = None
    body: str | None = None
    template: str = ""

    def __post_init__(self) -> None:
        check_value(self.value)
        self.binding()

    def binding(self) -> SecretBinding:
        """Return where it goes; raise `InvalidRequest` if that is not clear."""
        return bind(self.hosts, self.header, self.query, self.body, self.template)


@dataclass(frozen=True, slots=True)
class SecretUse:
    """A secret as one sandbox has it: `placeholder` is all that is ever inside, in the variable `name`."""

    name: str
    placeholder: str
    binding: SecretBinding
    value: str = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values, for the proxy alone: the value is among them."""
        return {
            "name": self.name,
            "placeholder": self.placeholder,
            "binding": self.binding.to_json(),
            "value": self.value,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> SecretUse:
        """Return what `to_json` wrote; raise `InvalidRequest` for anything else."""
        try:
            binding = SecretBinding.from_json(fields["binding"])
            return cls(fields["name"], fields["placeholder"], binding, fields["value"])
        except (KeyError, TypeError):
            # Without the reason, which could hold the value.
            raise InvalidRequest("this is no use of a secret") from None


@dataclass(frozen=True, slots=True)
class SecretInfo:
    """Facts about a stored secret; its value is not among them, and nothing that is made of it."""

    name: str
    owner: str
    hosts: Sequence[str]
    place: Place
    field: str
    template: str
    created_at: float
    changed_at: float
    last_used_at: float | None = None


def bind(
    hosts: Sequence[str],
    header: str | None = None,
    query: str | None = None,
    body: str | None = None,
    template: str = "",
) -> SecretBinding:
    """Return the binding to hosts and to one place, the header `Authorization` if none is named."""
    named: dict[Place, str | None] = {"header": header, "query": query, "body": body}
    places = [(place, name) for place, name in named.items() if name is not None]
    if len(places) > 1:
        raise InvalidRequest("a secret goes into one place: a header, a query or a body field")
    place, name = places[0] if places else ("header", "Authorization")
    return SecretBinding(_parse_hosts(hosts), place, name, template)


def new_placeholder() -> str:
    """Return what stands for a secret inside one sandbox: known to nobody else, and never encoded on its way."""
    return f"atoll-secret-{os.urandom(16).hex()}"


def check_value(value: str) -> None:
    """Raise `InvalidRequest` unless this can be the value of a secret. It is never shown."""
    if not isinstance(value, str) or not SHORTEST_VALUE <= len(value) <= LONGEST_VALUE:
        raise InvalidRequest(
            f"a secret's value is a text of {SHORTEST_VALUE} to {LONGEST_VALUE} characters;"
            " a shorter one could not be told from other text"
        )
    if not value.isprintable():
        raise InvalidRequest("a secret's value holds a line end or another control character")


def check_secret_name(name: str) -> None:
    """Raise `InvalidRequest` unless this can be the name of a stored secret."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"secret name {str(name)[:80]!r} is not 1 to 63 characters of letters, digits and ._-"
        )


def check_secrets(secrets: Mapping[str, Secret | str]) -> None:
    """Raise `InvalidRequest` unless these are secrets, or names of stored ones, by their variables."""
    if not isinstance(secrets, Mapping) or len(secrets) > MOST_SECRETS:
        raise InvalidRequest(f"secrets have to be at most {MOST_SECRETS}, by their variables")
    for variable, secret in secrets.items():
        if not isinstance(variable, str) or not _VARIABLE.fullmatch(variable):
            raise InvalidRequest(
                f"{str(variable)[:80]!r} cannot be the variable of a secret; write it like 'API_KEY'"
            )
        if isinstance(secret, str):
            check_secret_name(secret)
        elif not isinstance(secret, Secret):
            raise InvalidRequest(
                f"secret {variable} is {type(secret).__name__}; it has to be a Secret,"
                " or the name of a stored one"
            )


def _parse_hosts(texts: Sequence[str]) -> tuple[tuple[Host, int], ...]:
    listed = isinstance(texts, Sequence) and not isinstance(texts, str)
    if not listed or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("the hosts of a secret are a list of texts, such as ['api.example']")
    return tuple(dict.fromkeys(parse_authority(text, _HTTPS_PORT) for text in texts))


def _show(host: Host, port: int) -> str:
    return str(host) if port == _HTTPS_PORT else f"{host}:{port}"
