"""The one parser of JSON that comes from outside: whatever two programs might read in two ways is refused.

That is: keys that stand twice, NaN and infinities, numbers beyond any use, half characters, zero characters, and
values nested so deeply that the next reader's stack might not do.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import anyio.to_thread
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from atoll.errors import InvalidRequest
from atoll.server.errors import Refusal

DEEPEST = 64
MOST_DIGITS = 64

# Longer ones take the parser so long that others would wait for it.
_LONG_BYTES = 256 << 10
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(data: bytes | str) -> Any:
    """Return the value of a JSON text; raises `InvalidRequest`."""
    text = data if isinstance(data, str) else _decode(data)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"this is no JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _too_deep() from None
    _check_depth(text, value)
    _check_texts(text, value)
    return value


class JsonRoute(APIRoute):
    """A route whose JSON is read by this parser."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(StrictRequest.of(request))

        return handle_strictly


class StrictRequest(Request):
    """A request whose JSON is read by this parser, once."""

    @classmethod
    def of(cls, request: Request) -> StrictRequest:
        """Return a request as such a one, which keeps what was read of it."""
        return request if isinstance(request, cls) else cls(request.scope, request.receive)

    async def json(self) -> Any:
        """Return the value of its body; raises `Refusal`."""
        if not hasattr(self, "_json"):
            self._json = await _parse_body(await self.body())
        return self._json


async def _parse_body(body: bytes) -> Any:
    try:
        if len(body) < _LONG_BYTES:
            return parse_json(body)
        return await anyio.to_thread.run_sync(parse_json, body)
    except InvalidRequest as error:
        # FastAPI would put other errors into words of its own.
        raise Refusal(error, 400) from error


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"this is no JSON: byte {error.start} is not UTF-8") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for name, each in pairs:
        if name in value:
            raise InvalidRequest(f"the key {name[:80]!r} stands twice in one object")
        value[name] = each
    return value


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise _too_long(digits)
    return int(digits)


def _real(digits: str) -> float:
    if len(digits) > MOST_DIGITS:
        raise _too_long(digits)
    number = float(digits)
    if not math.isfinite(number):
        raise InvalidRequest(f"the number {digits} is larger than any that can be held")
    return number


def _no_number(name: str) -> float:
    raise InvalidRequest(f"this is no JSON: {name} is no number")


def _too_long(digits: str) -> InvalidRequest:
    return InvalidRequest(
        f"the number {digits[:20]}… has {len(digits)} characters, the most is {MOST_DIGITS}"
    )


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_whole, parse_float=_real, parse_constant=_no_number
)


def _check_depth(text: str, value: Any) -> None:
    # Most texts have fewer brackets than there may be levels, and need not be looked into.
    if text.count("[") + text.count("{") <= DEEPEST:
        return
    level = [value]
    for _ in range(DEEPEST):
        level = [each for whole in level for each in _inner(whole) if isinstance(each, dict | list)]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"values are nested more than {DEEPEST} deep")


def _inner(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _check_texts(text: str, value: Any) -> None:
    # Both can only be written as escapes: what is not one is not UTF-8, or no JSON.
    if "\\u0000" in text:
        _refuse_zeros(value)
    if _HALF.search(text):
        _refuse_halves(value)


def _refuse_zeros(value: Any) -> None:
    if any("\0" in each for each in _texts(value)):
        raise InvalidRequest(
            "a text holds a zero character", next_step='send such bytes as {"base64": …}'
        )


def _refuse_halves(value: Any) -> None:
    for each in _texts(value):
        try:
            each.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                "a text holds half a character", next_step='send such bytes as {"base64": …}'
            ) from None


def _texts(value: Any) -> Iterator[str]:
    rest = [value]
    while rest:
        each = rest.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            yield from each
            rest.extend(each.values())
        elif isinstance(each, list):
            rest.extend(each)
