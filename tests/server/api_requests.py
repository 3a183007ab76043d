"""Requests to everything that the description of the API lists, and what may come of them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx2
import jsonschema_rs

from tests.running_server import RunningServer

# What streams may have no end; so much of it is enough to see that it is one.
STREAM_SECONDS = 0.3
_ANSWER_SECONDS = 60.0
_PROBLEM = "application/problem+json"
_STREAMS = ("text/event-stream", "application/x-ndjson", "application/octet-stream")
# What cannot be done yet, and says so.
NOT_YET = {
    ("POST", "/sandboxes/{sandbox}/fork"),
    ("POST", "/sandboxes/{sandbox}/coalesce/{final}"),
}

Operation = tuple[str, str]


class Sent(NamedTuple):
    """A request as it is sent."""

    method: str
    path: str  # with its query
    headers: Mapping[str, str]
    body: bytes | None


class Got(NamedTuple):
    """What came back of it."""

    status: int
    headers: httpx2.Headers
    body: bytes
    is_whole: bool

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Api:
    """A running server, for whoever has its first token, and what it says of itself."""

    client: httpx2.Client
    document: dict[str, Any]
    reached: set[Operation] = field(default_factory=set)

    @classmethod
    def of(cls, server: RunningServer) -> Api:
        client = httpx2.Client(
            base_url=server.url,
            headers={"Authorization": f"Bearer {server.token}"},
            timeout=_ANSWER_SECONDS,
            trust_env=False,
        )
        return cls(client, client.get("/openapi.json").json())

    @property
    def operations(self) -> list[Operation]:
        return [
            (method.upper(), path)
            for path, item in self.document["paths"].items()
            for method in item
            if method != "parameters"
        ]

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        /,
        *,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **values: Any,
    ) -> Any:
        """Reach an operation by a right request; returns its JSON, if it has any."""
        kind = {} if body is None else {"Content-Type": "application/json"}
        content = data if body is None else json.dumps(body).encode()
        named = {name: value for name, value in values.items() if f"{{{name}}}" in path}
        query = {name: value for name, value in values.items() if name not in named}
        address = (
            str(httpx2.URL(path.format(**named), params=query)) if query else path.format(**named)
        )
        got = self.exchange(
            (method, path), Sent(method, address, {**kind, **(headers or {})}, content)
        )
        assert 200 <= got.status < 300, (method, address, got.status, got.body[:500])
        is_json = got.headers.get("content-type") == "application/json"
        return got.json() if is_json and got.is_whole and got.body else got.body

    def exchange(self, operation: Operation, sent: Sent) -> Got:
        """Send a request, and check that what comes back is as the description says."""
        got = self._send(sent)
        try:
            self._check(operation, got)
        except AssertionError as error:
            raise AssertionError(f"{sent} → {got.status} {got.body[:1000]!r}") from error
        if 200 <= got.status < 300:
            self.reached.add(operation)
        return got

    def _send(self, sent: Sent) -> Got:
        request = self.client.build_request(
            sent.method, sent.path, headers=dict(sent.headers), content=sent.body
        )
        answer = self.client.send(request, stream=True)
        # A session is another way of coming in than the token.
        self.client.cookies.clear()
        body = bytearray()
        try:
            is_stream = answer.headers.get("content-type", "").startswith(_STREAMS)
            if is_stream and "content-length" not in answer.headers:
                self._limit_reads(answer)
            end = time.monotonic() + STREAM_SECONDS
            for chunk in answer.iter_raw():
                body += chunk
                if is_stream and time.monotonic() > end:
                    return Got(answer.status_code, answer.headers, bytes(body), False)
        except httpx2.ReadTimeout:
            return Got(answer.status_code, answer.headers, bytes(body), False)
        finally:
            answer.close()
        return Got(answer.status_code, answer.headers, bytes(body), True)

    def _limit_reads(self, answer: httpx2.Response) -> None:
        """Wait only for a moment for more of what may have no end."""
        answer.request.extensions["timeout"]["read"] = STREAM_SECONDS

    def _check(self, operation: Operation, got: Got) -> None:
        responses = self._described(operation)["responses"]
        if got.status >= 500:
            assert (got.status, operation in NOT_YET) == (501, True)
        if got.status >= 400:
            assert got.headers["content-type"] == _PROBLEM
            if operation[0] == "HEAD":
                return
            assert {"type", "title", "status", "detail", "code", "retryable"} <= got.json().keys()
            return
        told = responses.get(str(got.status))
        assert told is not None, "this status is not described"
        if got.status == 204:
            assert not got.body
        self._check_body(told.get("content", {}), got)

    def _check_body(self, content: Mapping[str, Any], got: Got) -> None:
        kind = got.headers.get("content-type", "").partition(";")[0]
        if not got.body or not got.is_whole or kind not in content or kind != "application/json":
            return
        schema = {**content[kind]["schema"], "components": self.document["components"]}
        jsonschema_rs.validator_for(schema).validate(got.json())

    def _described(self, operation: Operation) -> Any:
        method, path = operation
        return self.document["paths"][path][method.lower()]
