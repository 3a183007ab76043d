"""The transport over HTTP: addresses, answers, errors, and connections that break."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path

import pytest

from atoll.client.http import HttpNode, node_address
from atoll.errors import (
    AtollError,
    Conflict,
    InternalError,
    InvalidRequest,
    NotFound,
    Unavailable,
)

pytestmark = pytest.mark.any_user

ERROR = (
    '{"code": "%s", "message": "said so", "details": {"message": "x", "limit": 3},'
    ' "retryable": false, "next_step": null}'
)


@contextmanager
def answering(path: Path, *answers: bytes) -> Iterator[HttpNode]:
    """Serve these answers, one per connection, whatever is asked."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield HttpNode(f"unix://{path}")
    finally:
        thread.join(60)
        listener.close()


def answer(status: int, body: str, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status} X\r\nContent-Length: {size}\r\n\r\n{body}".encode()


async def test_a_refusal_is_read_though_nobody_heard_the_request_out(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "node.sock"))
    listener.listen()

    def refuse() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(answer(503, ERROR % "unavailable"))

    thread = threading.Thread(target=refuse)
    thread.start()
    with listener:
        async with HttpNode(f"unix://{tmp_path}/node.sock") as node:
            # More than the kernel takes for somebody who does not read.
            with pytest.raises(Unavailable, match="said so"):
                await node.call("POST", "/sandboxes", body={"env": {"A": "x" * (8 << 20)}})
        thread.join(60)


def test_the_address_is_that_of_the_environment() -> None:
    assert node_address({"ATOLL_URL": "http://there"}) == "http://there"
    assert node_address({"ATOLL_DATA": "/some/where"}) == "unix:///some/where/node.sock"


@pytest.mark.parametrize(
    "address", ["", "node", "unix:", "unix://", "unix://host/path", "ftp://x", "http://", "/path"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest, match="ATOLL_URL"):
        HttpNode(address)


async def test_a_node_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    async with HttpNode(f"unix://{tmp_path}/node.sock") as node:
        for call in (
            lambda: node.call("GET", "/health"),
            lambda: anext(node.events("a" * 26)),
            lambda: node.attach("a" * 26).__aenter__(),
        ):
            with pytest.raises(Unavailable, match="no node answers") as caught:
                await call()
            assert "atoll node" in caught.value.details["next_step"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [("not_found", NotFound), ("conflict", Conflict), ("os.system", InternalError)],
)
async def test_an_error_is_one_of_our_own(
    tmp_path: Path, code: str, kind: type[AtollError]
) -> None:
    with answering(tmp_path / "s", answer(404, ERROR % code)) as node:
        async with node:
            with pytest.raises(kind) as caught:
                await node.call("GET", "/x")
    assert type(caught.value) is kind
    assert (caught.value.message, caught.value.details) == ("said so", {"limit": 3})


@pytest.mark.parametrize("body", ["", "<html>", "[]", '{"error": 7}', '{"error": {}}'])
async def test_an_answer_of_somebody_else_is_no_surprise(tmp_path: Path, body: str) -> None:
    with answering(tmp_path / "s", answer(502, body)) as node:
        async with node:
            with pytest.raises(Unavailable, match="502"):
                await node.call("GET", "/x")


async def test_a_body_that_breaks_off_is_told(tmp_path: Path) -> None:
    cut = answer(200, "half", length=8)
    with answering(tmp_path / "s", cut, cut) as node:
        async with node:
            with pytest.raises(Unavailable, match="broke"):
                await node.call("GET", "/x")
            with pytest.raises(Unavailable, match="broke"):
                async with aclosing(node.read("/x")) as chunks:
                    assert [chunk async for chunk in chunks]


@pytest.mark.parametrize("line", ['{"seq": 0}', "[]", "7", "{"])
async def test_events_that_are_none_are_refused(tmp_path: Path, line: str) -> None:
    with answering(tmp_path / "s", answer(200, line + "\n")) as node:
        async with node:
            with pytest.raises(InvalidRequest, match="no event"):
                async with aclosing(node.events("a" * 26)) as events:
                    await anext(events)
