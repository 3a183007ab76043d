"""Attacks on the TCP door with bytes that no client sends: they are refused, nothing breaks, and others are served meanwhile."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from statistics import quantiles

import pytest

from tests.cli.conftest import why_not
from tests.http_exchange import UPGRADE, Answer, ask, build, exchange, parse_answer
from tests.running_server import RunningServer, running_server
from tests.server.test_json_bodies import REFUSED

pytestmark = pytest.mark.any_user

HOST = b"Host: 127.0.0.1\r\n"
SETTINGS = {
    "ATOLL_SERVER__HEAD_SECONDS": "60",
    "ATOLL_SERVER__MOST_CONNECTIONS_PER_ADDRESS": "400",
    "ATOLL_EXECUTION__SLOW_READER_SECONDS": "60",
}
# More than this many times as slow as without an attack, and a floor below which nobody can measure.
_SLOWER, _FLOOR_SECONDS = 20, 0.25


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")
    with running_server(**SETTINGS) as server:
        yield server
        assert [each for each in server.events() if each["level"] == "error"] == []


@pytest.fixture(scope="module")
def sandbox(server: RunningServer) -> str:
    return str(json.loads(post(server, "/sandboxes", {"template": "base"}).body)["id"])


def post(server: RunningServer, path: str, body: object) -> Answer:
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = {"Content-Type": "application/json"}
    return exchange(server, build("POST", path, token=server.token, body=encoded, headers=kind))


def is_well(server: RunningServer) -> bool:
    return ask(server, "GET", "/health").status == 200 and server.process.poll() is None


# --- framing ------------------------------------------------------------------------------------------------


def chunked(server: RunningServer, body: bytes) -> bytes:
    head = (
        f"POST /sandboxes HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {server.token}\r\n"
    )
    kind = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    return f"{head}{kind}".encode() + body


SMUGGLED = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
FRAMES = {
    "length and chunks": b"POST /sandboxes HTTP/1.1\r\n"
    + HOST
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    + SMUGGLED,
    "chunks and length": b"POST /sandboxes HTTP/1.1\r\n"
    + HOST
    + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"
    + SMUGGLED,
    "two lengths": b"POST / HTTP/1.1\r\n"
    + HOST
    + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a list of lengths": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1, 2\r\n\r\nab",
    "a negative length": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n",
    "a length with a plus": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: +1\r\n\r\na",
    "a length in hex": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 0x1\r\n\r\na",
    "a length beyond all": b"POST / HTTP/1.1\r\n"
    + HOST
    + b"Content-Length: "
    + b"9" * 50
    + b"\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\n" + HOST + b"Host: evil.example\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "another coding": b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
    "a coding with a tail": b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: xchunked\r\n\r\n",
    "a coding twice": b"POST / HTTP/1.1\r\n"
    + HOST
    + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
    "a space before the colon": b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length : 5\r\n\r\nhello",
    "a header without a name": b"GET / HTTP/1.1\r\n" + HOST + b": value\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\n" + HOST + b"header\r\n\r\n",
    "a zero in a name": b"GET / HTTP/1.1\r\n" + HOST + b"na\0me: x\r\n\r\n",
    "a zero in a value": b"GET / HTTP/1.1\r\n" + HOST + b"name: x\0y\r\n\r\n",
    "a bare return in a value": b"GET / HTTP/1.1\r\n" + HOST + b"name: x\ry\r\n\r\n",
    "a header before the first": b"GET / HTTP/1.1\r\n " + HOST + b"\r\n",
    "no version": b"GET /\r\n" + HOST + b"\r\n",
    "another version": b"GET / HTTP/3.9\r\n" + HOST + b"\r\n",
    "a version in words": b"GET / HTTP/one\r\n" + HOST + b"\r\n",
    "a zero in the address": b"GET /\0 HTTP/1.1\r\n" + HOST + b"\r\n",
    "bytes in the address": b"GET /\xff\xfe HTTP/1.1\r\n" + HOST + b"\r\n",
    "spaces in the address": b"GET / / HTTP/1.1\r\n" + HOST + b"\r\n",
    "another address whole": b"GET http://evil.example/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "a tunnel": b"CONNECT 127.0.0.1:22 HTTP/1.1\r\n" + HOST + b"\r\n",
    "a star": b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n",
    "TLS": bytes.fromhex("16030100a5010000a10303") + bytes(160),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "zeros": bytes(1000),
    "a socket without a key": b"GET / HTTP/1.1\r\n"
    + HOST
    + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n",
    "a socket by POST": b"POST / HTTP/1.1\r\n"
    + HOST
    + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
    "a socket with a body": b"GET / HTTP/1.1\r\n"
    + HOST
    + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nContent-Length: 9\r\n\r\n",
}


@pytest.mark.parametrize("request_bytes", FRAMES.values(), ids=FRAMES.keys())
def test_what_two_servers_could_read_in_two_ways_is_refused(
    server: RunningServer, request_bytes: bytes
) -> None:
    answer = exchange(server, request_bytes, is_whole=False)
    assert answer.status == 400
    assert answer.problem["code"] == "invalid_request"
    # One answer: nothing of what came after it was taken for a request.
    assert b"HTTP/1.1 400" not in answer.body
    assert is_well(server)


@pytest.mark.parametrize(
    "body",
    [
        *(b"zz\r\n{}\r\n0\r\n\r\n", b"-1\r\n{}\r\n0\r\n\r\n", b"0x2\r\n{}\r\n0\r\n\r\n"),
        *(b"2\r\n{}0\r\n\r\n", b"2{}\r\n0\r\n\r\n", b"ffffffffffffffffffff1\r\n{}\r\n0\r\n\r\n"),
        *(b" 2\r\n{}\r\n0\r\n\r\n", b"2\r\n{}\r\n0\r\nbad trailer\r\n\r\n", b"\r\n\r\n"),
    ],
)
def test_bad_chunks_are_refused(server: RunningServer, body: bytes) -> None:
    answer = exchange(server, chunked(server, body), is_whole=False)
    assert answer.status in (400, 431)
    assert is_well(server)


def test_good_chunks_are_taken(server: RunningServer) -> None:
    # Else the test above would pass whatever is sent.
    connection_close = chunked(server, b'14\r\n{"template": "base"}\r\n0\r\n\r\n').replace(
        b"Content-Type", b"Connection: close\r\nContent-Type"
    )
    assert exchange(server, connection_close).status < 300


@pytest.mark.parametrize(
    ("request_bytes", "statuses"),
    [
        (build("GET", "/" + "x" * 9000), {414}),
        (build("GET", "/sandboxes?" + "x=1&" * 3000), {414}),
        (build("GET", "/" + "x" * 100_000), {414, 431}),
        (build("GET", "/", X="x" * 20_000), {431}),
        (build("GET", "/", X="x" * 1_000_000), {431}),
        (build("GET", "/", headers={f"X{n}": "x" for n in range(150)}), {431}),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 200_000, {431}),
        (b"G" * 1_000_000, {400, 431}),
        (build("GET", "/", Cookie="a=b;" * 8000), {431}),
    ],
)
def test_what_is_too_large_is_refused(
    server: RunningServer, request_bytes: bytes, statuses: set[int]
) -> None:
    answer = exchange(server, request_bytes)
    assert answer.status in statuses
    assert is_well(server)


def test_a_head_that_comes_in_pieces_is_no_larger(server: RunningServer) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n" + HOST)
        answer = b""
        for _ in range(2000):
            try:
                connection.sendall(b"X: " + b"y" * 100 + b"\r\n")
            except OSError:
                break
        answer = connection.recv(65536)
    assert parse_answer(answer).status == 431


# --- bodies -------------------------------------------------------------------------------------------------

BODIES = {
    **REFUSED,
    "a list": b"[]",
    "a text": b'"text"',
    "null": b"null",
    "wrong types": b'{"template": [], "env": 7, "files": "x"}',
    "unknown fields": b'{"__proto__": {"a": 1}, "constructor": 1}',
    "numbers for text": b'{"name": 1e300}',
    "a list of nothing": b'{"command": [null, null]}',
    "limits beyond all": b'{"limits": {"memory": 1e308, "cpus": 1e308, "processes": -5}}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_no_body_is_a_fault_of_ours(server: RunningServer, sandbox: str, body: bytes) -> None:
    for path in ("/sandboxes", f"/sandboxes/{sandbox}/executions", f"/sandboxes/{sandbox}/execute"):
        answer = post(server, path, body)
        assert 400 <= answer.status < 500
        assert answer.problem["message"]
        assert b"Traceback" not in answer.body and b".py" not in answer.body
    assert is_well(server)


def test_strangers_may_send_next_to_nothing(server: RunningServer) -> None:
    body = b'{"token": "' + b"x" * 100_000 + b'"}'
    kind = {"Content-Type": "application/json"}
    assert exchange(server, build("POST", "/auth/token", body=body, headers=kind)).status == 413


def test_a_form_is_no_json(server: RunningServer) -> None:
    # What a page of somebody else's can send without being asked: no JSON, whatever is in it.
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
    ):
        request = build(
            "POST",
            "/sandboxes",
            token=server.token,
            body=b'{"template": "base"}',
            Content_Type=kind,
        )
        assert 400 <= exchange(server, request).status < 500


# --- WebSockets ---------------------------------------------------------------------------------------------


def open_socket(server: RunningServer, path: str) -> socket.socket:
    connection = server.connect()
    headers = {**UPGRADE, "Sec-WebSocket-Extensions": "permessage-deflate"}
    connection.sendall(build("GET", path, token=server.token, headers=headers))
    head = b""
    while b"\r\n\r\n" not in head:
        head += connection.recv(1)
    assert b" 101 " in head, head
    # A few bytes would stand for a thousand times as many.
    assert b"permessage-deflate" not in head
    return connection


def frame(
    opcode: int, payload: bytes, *, final: bool = True, masked: bool = True, reserved: int = 0
) -> bytes:
    first = (0x80 if final else 0) | reserved << 4 | opcode
    return bytes([first]) + _length(len(payload), masked) + (bytes(4) if masked else b"") + payload


def _length(length: int, masked: bool) -> bytes:
    mask = 0x80 if masked else 0
    if length < 126:
        return bytes([mask | length])
    if length < 1 << 16:
        return bytes([mask | 126]) + struct.pack("!H", length)
    return bytes([mask | 127]) + struct.pack("!Q", length)


BAD_FRAMES = {
    "without a mask": frame(1, b"{}", masked=False),
    "a reserved bit": frame(1, b"{}", reserved=4),
    "a reserved kind": frame(3, b"x"),
    "a reserved kind of control": frame(11, b"x"),
    "a ping in pieces": frame(9, b"x", final=False),
    "a large ping": frame(9, b"x" * 126),
    "a piece of nothing": frame(0, b"x"),
    "a text within a text": frame(1, b"a", final=False) + frame(1, b"b"),
    "no UTF-8": frame(1, b"\xff\xfe"),
    "half a character": frame(1, b"\xed\xa0\x80"),
    "a close of one byte": frame(8, b"x"),
    "a close of a reserved code": frame(8, struct.pack("!H", 1005)),
    "a close that is no UTF-8": frame(8, struct.pack("!H", 1000) + b"\xff"),
    "a length with its highest bit": bytes([0x82, 0xFF]) + b"\xff" * 8 + bytes(4) + b"x" * 1000,
    "a length that is longer than it need be": bytes([0x82, 0xFE, 0, 5]) + bytes(4) + b"hello",
    "more than a message may have": frame(2, bytes(2 << 20)),
    "the same in pieces": frame(2, bytes(600_000), final=False)
    + frame(0, bytes(600_000), final=False) * 3,
}


@pytest.mark.parametrize("data", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
def test_bad_frames_end_their_socket_and_nothing_else(
    server: RunningServer, sandbox: str, data: bytes
) -> None:
    with open_socket(server, f"/sandboxes/{sandbox}/attach?on_disconnect=cancel") as connection:
        try:
            connection.sendall(data)
        except OSError:
            pass  # it had enough before the end
        wait_for_end(connection)
    assert is_well(server)


def wait_for_end(connection: socket.socket) -> None:
    """Read until the other side closes, or fail by the socket's own timeout."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass


@pytest.mark.parametrize(
    "text",
    [
        *(
            b"",
            b"{",
            b"[]",
            b'{"type": "resize"}',
            b'{"type": "resize", "rows": 1e99, "columns": 1}',
        ),
        *(b'{"type": "signal", "signal": 99999}', b'{"type": "cancel", "type": "close_stdin"}'),
        *(b"[" * 100_000, b'{"type": "nonsense"}', b'{"type": "signal", "signal": NaN}'),
    ],
)
def test_messages_that_are_none_are_refused_and_the_socket_goes_on(
    server: RunningServer, sandbox: str, text: bytes
) -> None:
    wish = {"argv": ["cat"], "keep_stdin": True}
    execution = json.loads(post(server, f"/sandboxes/{sandbox}/executions", wish).body)["id"]
    with open_socket(server, f"/executions/{execution}/attach") as connection:
        connection.sendall(frame(1, text))
        assert b'"refused"' in connection.recv(65536)
        connection.sendall(frame(1, b'{"type": "cancel"}'))
        assert b'"killed"' in read_until(connection, b'"end"')
    assert is_well(server)


def read_until(connection: socket.socket, words: bytes) -> bytes:
    data = b""
    while words not in data:
        chunk = connection.recv(65536)
        assert chunk, data
        data += chunk
    return data


def test_pings_that_nobody_reads_the_answers_of_do_not_pile_up(
    server: RunningServer, sandbox: str
) -> None:
    path = f"/sandboxes/{sandbox}/attach?on_disconnect=cancel"
    before = memory_of(server)
    with open_socket(server, path) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        flood = frame(9, b"x" * 125) * 2000
        connection.settimeout(1.0)
        try:
            for _ in range(200):  # 50 MB, whose answers would be as many
                connection.sendall(flood)
        except OSError:
            pass
        assert is_well(server)
        assert memory_of(server) - before < 20 << 20


def memory_of(server: RunningServer) -> int:
    with open(f"/proc/{server.process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- many at once -------------------------------------------------------------------------------------------


def health_p99(server: RunningServer, count: int = 200) -> float:
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        assert ask(server, "GET", "/health").status == 200
        times.append(time.perf_counter() - begun)
    return quantiles(times, n=100)[98]


def test_a_hundred_slow_ones_and_fifty_who_do_not_read_hold_nobody_up(
    server: RunningServer, sandbox: str
) -> None:
    command = {"argv": ["sh", "-c", "yes | head -c 30000000"], "wait": False}
    execution = json.loads(post(server, f"/sandboxes/{sandbox}/executions", command).body)["id"]
    alone = health_p99(server)
    with ExitStack() as stack:
        slow = [stack.enter_context(server.connect()) for _ in range(100)]
        for number, each in enumerate(slow):
            each.sendall(b"GET /sandboxes HTTP/1.1\r\n" if number % 2 else b"POST /sandb")
        deaf = [stack.enter_context(server.connect()) for _ in range(50)]
        for each in deaf:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            each.sendall(build("GET", f"/executions/{execution}/events", token=server.token))
        # At first they are given what they asked for, as much as there is room for on the way.
        health_p99(server)
        for each in slow:
            each.sendall(b"X")
        # A machine that is busy with others may spoil some of it, but not all.
        beside = min(health_p99(server) for _ in range(5))
        # They are still there: nobody was helped by their going.
        assert all(is_connected(each) for each in slow)
    assert beside < max(alone * _SLOWER, _FLOOR_SECONDS), (alone, beside)
    assert is_well(server)


def test_tiny_pieces_hold_nobody_up(server: RunningServer) -> None:
    """Whoever sends them is refused at once, and nobody waits until all that he sends was looked at."""
    head = b"POST /sandboxes HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    check_goes_on_beside(server, [head + b"1\r\na\r\n" * 250_000] * 5)


def test_empty_frames_hold_nobody_up(server: RunningServer, sandbox: str) -> None:
    upgrade = build("GET", f"/sandboxes/{sandbox}/cells", token=server.token, headers=UPGRADE)
    check_goes_on_beside(server, [upgrade + b"\x8a\x80\0\0\0\0" * 250_000] * 3)


def check_goes_on_beside(server: RunningServer, floods: Sequence[bytes]) -> None:
    """See that others are answered while all this is sent at once; a loop that stands still is told as an error."""
    with ThreadPoolExecutor(len(floods)) as pool:
        sending = [pool.submit(flood, server, each) for each in floods]
        while not all(each.done() for each in sending):
            assert is_well(server)
    assert is_well(server)
    assert "loop.blocked" not in {each["event"] for each in server.events()}


def flood(server: RunningServer, data: bytes) -> None:
    with server.connect() as connection, suppress(OSError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass


def is_connected(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_whoever_leaves_in_the_middle_leaves_nothing(server: RunningServer) -> None:
    before = count_descriptors(server)
    for number in range(200):
        request = build("POST", "/sandboxes", token=server.token, Content_Length="100")
        connection = server.connect()
        connection.sendall(request[: number * len(request) // 200])
        if number % 2:
            reset = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        connection.close()
    deadline = time.monotonic() + 60
    while count_descriptors(server) > before + 5:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert is_well(server)


def count_descriptors(server: RunningServer) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def test_an_answer_is_the_one_to_its_own_request(server: RunningServer) -> None:
    """Requests sent at once are answered in their order, each with its own rights."""
    known = build("GET", "/sandboxes", token=server.token, Connection="keep-alive")
    unknown = build("GET", "/sandboxes", Connection="keep-alive")
    last = build("GET", "/health")
    with server.connect() as connection:
        connection.sendall(known + known + unknown + last)
        data = b""
        while chunk := connection.recv(65536):
            data += chunk
    assert re.findall(rb"HTTP/1\.1 (\d+) ", data) == [b"200", b"200", b"401", b"200"]
