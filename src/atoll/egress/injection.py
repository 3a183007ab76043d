"""Puts secrets in place of their placeholders, for the hosts they are bound to, and takes them out of answers. Pure.

Inside there are only placeholders. Each request is judged anew: a redirect to another host finds nothing that was put in before. Of an answer
to a request that carries a secret, each occurrence of the value is overwritten, in the spellings that servers commonly echo. That is a net under those who bind a
secret to a careless host, no wall: a host that can be made to spell it in another way can be made to tell it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote, quote_plus, unquote_plus

from atoll.egress.heads import Headers
from atoll.egress.refusals import Refused
from atoll.model.hosts import Host
from atoll.model.secret import SecretUse

# A body in which a secret may have to be put is held until it is whole.
LONGEST_BODY = 1024 * 1024

_FORM, _JSON = b"application/x-www-form-urlencoded", b"application/json"
_BASIC = b"basic "
# Whoever asks for parts could have a secret told in parts; what is packed cannot be searched.
_DROPPED = {b"range", b"if-range", b"accept-encoding", b"sec-websocket-extensions"}
_SHORTEST_NEEDLE = 8


class Secrets:
    """The secrets of one sandbox."""

    def __init__(self, uses: Iterable[SecretUse] = ()) -> None:
        self.uses = tuple(uses)

    def are_for(self, host: Host, port: int) -> bool:
        """Tell whether any is bound to this host."""
        return any(use.binding.goes_to(host, port) for use in self.uses)

    def inject(self, host: Host, port: int, path: str, headers: Headers) -> Injection:
        """Return a request over TLS as it has to be sent.

        A placeholder on its way to somebody else is refused: somebody is mistaken, or trying.
        """
        bound = [use for use in self.uses if use.binding.goes_to(host, port)]
        strangers = [use for use in self.uses if use not in bound]
        _refuse_placeholders(strangers, f"is not for {host}:{port}", path, headers)
        return Injection(bound, path, headers)

    def check_plain(self, host: Host, path: str, headers: Headers) -> None:
        """Refuse any placeholder in the head of a request without TLS."""
        _refuse_placeholders(self.uses, f"does not go to {host} without TLS", path, headers)


def _refuse_placeholders(
    uses: Iterable[SecretUse], fault: str, path: str, headers: Headers
) -> None:
    for use in uses:
        placeholder = use.placeholder.encode()
        if placeholder in path.encode() or any(placeholder in value for _, value in headers):
            raise Refused(403, f"secret {use.name} {fault}")


class Injection:
    """One request with its secrets put in; `path` and `headers` are what has to be sent."""

    def __init__(self, bound: Sequence[SecretUse], path: str, headers: Headers) -> None:
        self._bound = bound
        self._used: dict[str, SecretUse] = {}
        self.path = self._fill_query(path)
        self.headers = [(name, self._fill_header(name, value)) for name, value in headers]
        self._kind = _media_type(headers)
        self._in_body = [use for use in bound if use.binding.place == "body"]
        self._is_packed = any(name.lower() == b"content-encoding" for name, _ in headers)
        if self._used or self.wants_body:
            self.headers = [each for each in self.headers if each[0].lower() not in _DROPPED]
            self.headers.append((b"Accept-Encoding", b"identity"))

    @property
    def used(self) -> Sequence[SecretUse]:
        """The secrets that it carries."""
        return list(self._used.values())

    @property
    def wants_body(self) -> bool:
        """Whether the body has to be held and given to `fill_body`."""
        return bool(self._in_body) and self._kind in (_FORM, _JSON) and not self._is_packed

    def fill_body(self, body: bytes) -> bytes:
        """Return the whole body with secrets in place of placeholders."""
        fill = self._fill_form if self._kind == _FORM else self._fill_json
        for use in self._in_body:
            if use.placeholder.encode() in body:
                body = fill(use, body)
        return body

    def _fill_header(self, name: bytes, value: bytes) -> bytes:
        for use in self._bound:
            if use.binding.place == "header" and use.binding.field.encode().lower() == name.lower():
                value = self._fill_basic(use, value) or self._fill_text(use, value)
        return value

    def _fill_text(self, use: SecretUse, text: bytes) -> bytes:
        if use.placeholder.encode() not in text:
            return text
        self._used[use.name] = use
        if use.binding.template:
            return use.binding.template.replace("{}", use.value).encode()
        return text.replace(use.placeholder.encode(), use.value.encode())

    def _fill_basic(self, use: SecretUse, value: bytes) -> bytes | None:
        """Return what a client's `user:placeholder`, which it has encoded, becomes; None if this is none."""
        if value[: len(_BASIC)].lower() != _BASIC:
            return None
        try:
            plain = base64.b64decode(value[len(_BASIC) :], validate=True)
        except ValueError:
            return None
        if use.placeholder.encode() not in plain:
            return None
        self._used[use.name] = use
        return b"Basic " + base64.b64encode(
            plain.replace(use.placeholder.encode(), use.value.encode())
        )

    def _fill_query(self, path: str) -> str:
        plain, mark, query = path.partition("?")
        for use in self._bound:
            if use.binding.place == "query":
                query = self._fill_fields(use, query)
        return plain + mark + query

    def _fill_fields(self, use: SecretUse, text: str) -> str:
        """Put a secret into the fields of its name in a query or a form."""
        return "&".join(self._fill_field(use, field) for field in text.split("&"))

    def _fill_field(self, use: SecretUse, field: str) -> str:
        name, mark, value = field.partition("=")
        if unquote_plus(name) != use.binding.field or use.placeholder not in value:
            return field
        self._used[use.name] = use
        if use.binding.template:
            value = quote(use.binding.template.replace("{}", use.value), safe="")
        else:
            value = value.replace(use.placeholder, quote(use.value, safe=""))
        return name + mark + value

    def _fill_form(self, use: SecretUse, body: bytes) -> bytes:
        # Byte by byte, so that what is not ASCII stays what it is.
        return self._fill_fields(use, body.decode("latin-1")).encode("latin-1")

    def _fill_json(self, use: SecretUse, body: bytes) -> bytes:
        """Put a secret into the one field that it is for, and leave every other byte as it is."""
        try:
            found = _find_step(json.loads(body), use.binding.field.split("."))
        except (ValueError, RecursionError):
            return body
        if not isinstance(found, str) or use.placeholder not in found:
            return body
        if body.count(use.placeholder.encode()) > 1:
            raise Refused(
                400, f"the placeholder of secret {use.name} stands more than once in the body"
            )
        self._used[use.name] = use
        if not use.binding.template:
            return body.replace(use.placeholder.encode(), json.dumps(use.value)[1:-1].encode())
        whole = json.dumps(use.binding.template.replace("{}", use.value)).encode()
        old = [json.dumps(found, ensure_ascii=ascii_only).encode() for ascii_only in (True, False)]
        for text in old:
            if text in body:
                return body.replace(text, whole)
        raise Refused(400, f"the body field of secret {use.name} is spelled in an unusual way")


class Scrubber:
    """Overwrites secrets in a stream of bytes, of which it holds back only what may be the beginning of one."""

    def __init__(self, uses: Iterable[SecretUse]) -> None:
        self._needles = sorted({each for use in uses for each in _spellings(use)}, key=len)[::-1]
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return as much as can be told by now."""
        text = self.clean(self._held + data)
        keep = max((_overlap(text, needle) for needle in self._needles), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> bytes:
        """Return the rest."""
        rest, self._held = self._held, b""
        return rest

    def clean(self, text: bytes) -> bytes:
        """Return a text that is whole, as long as before."""
        for needle in self._needles:
            if needle in text:
                text = text.replace(needle, b"*" * len(needle))
        return text


def _spellings(use: SecretUse) -> Iterable[bytes]:
    value = use.value
    yield value.encode()
    yield quote(value, safe="").encode()
    yield quote(value).encode()
    yield quote_plus(value).encode()
    yield json.dumps(value)[1:-1].encode()
    yield value.encode().hex().encode()
    yield value.encode().hex().upper().encode()
    # Of base64, what does not depend on the bytes around it: the text may begin at each of three places.
    for lead in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            coded = encode(b"\0" * lead + value.encode()).rstrip(b"=")
            first = (lead * 8 + 5) // 6
            whole = (lead + len(value.encode())) * 8 // 6
            if whole - first >= _SHORTEST_NEEDLE:
                yield coded[first:whole]


def _overlap(text: bytes, needle: bytes) -> int:
    """Return how many of the last bytes of a text may be the first ones of a needle."""
    start = text.find(needle[:1], max(0, len(text) - len(needle) + 1))
    while start >= 0:
        if needle.startswith(text[start:]):
            return len(text) - start
        start = text.find(needle[:1], start + 1)
    return 0


def _media_type(headers: Headers) -> bytes:
    for name, value in headers:
        if name.lower() == b"content-type":
            return value.partition(b";")[0].strip().lower()
    return b""


def _find_step(value: Any, steps: Sequence[str]) -> Any:
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value
