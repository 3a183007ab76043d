"""ClientHellos: real ones in any pieces, and all that could be read in two ways."""

from __future__ import annotations

import ssl
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.egress.client_hello import MOST_BYTES, ClientHello, ClientHelloReader
from atoll.errors import InvalidRequest
from atoll.model.hosts import Host

pytestmark = pytest.mark.any_user


def real_hello(name: str | None, protocols: list[str] | None = None) -> bytes:
    """Return what this Python's TLS sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if protocols:
        context.set_alpn_protocols(protocols)
    sent = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


HELLO = real_hello("api.example", ["h2", "http/1.1"])


def vector(width: int, data: bytes) -> bytes:
    return len(data).to_bytes(width) + data


def extension(kind: int, data: bytes) -> bytes:
    return kind.to_bytes(2) + vector(2, data)


def server_name(*names: bytes, kind: int = 0) -> bytes:
    entries = b"".join(kind.to_bytes(1) + vector(2, name) for name in names)
    return extension(0, vector(2, entries))


def message(*extensions: bytes, after: bytes = b"") -> bytes:
    """Return a ClientHello made by hand, not yet cut into records."""
    body = b"\x03\x03" + bytes(32) + vector(1, b"") + vector(2, b"\x13\x01") + vector(1, b"\0")
    body += vector(2, b"".join(extensions)) + after
    return b"\x01" + vector(3, body)


def records(data: bytes, size: int = 1 << 14) -> bytes:
    pieces = (data[start : start + size] for start in range(0, len(data), size))
    return b"".join(b"\x16\x03\x01" + vector(2, piece) for piece in pieces)


def read(data: bytes) -> ClientHello | None:
    return ClientHelloReader().feed(data)


def test_a_real_hello_is_read() -> None:
    assert read(HELLO) == ClientHello(Host("api.example"), (b"h2", b"http/1.1"))
    assert read(real_hello("API.Example")) == ClientHello(Host("api.example"))
    assert read(real_hello(None)) == ClientHello(None)
    # For an address, clients send no name.
    assert read(real_hello("127.0.0.1")) == ClientHello(None)


def test_every_beginning_of_it_waits_for_more() -> None:
    for end in range(len(HELLO)):
        assert read(HELLO[:end]) is None


@given(st.lists(st.integers(0, len(HELLO)), max_size=20), st.integers(1, 600))
def test_it_may_come_in_any_pieces(cuts: list[int], record_size: int) -> None:
    data = records(HELLO[5:], record_size)
    reader = ClientHelloReader()
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in pairwise(places)]
    answers = [reader.feed(piece) for piece in pieces]
    assert answers == [*[None] * (len(pieces) - 1), read(HELLO)]


def test_byte_by_byte() -> None:
    reader = ClientHelloReader()
    answers = [reader.feed(bytes([byte])) for byte in records(HELLO[5:], 1)]
    assert set(answers[:-1]) == {None}
    assert answers[-1] == read(HELLO)


def test_what_follows_in_records_of_its_own_is_left_to_the_server() -> None:
    early_data = b"\x14\x03\x03\x00\x01\x01" + b"\x17\x03\x03\x00\x03abc"
    assert read(HELLO + early_data) == read(HELLO)


def test_a_hello_made_by_hand_is_read() -> None:
    assert read(records(message(server_name(b"api.example")))) == ClientHello(Host("api.example"))
    assert read(records(message())) == ClientHello(None)
    without_extensions = message()[:-2]
    shorter = b"\x01" + vector(3, without_extensions[4:])
    assert read(records(shorter)) == ClientHello(None)


def test_an_encrypted_hello_is_told() -> None:
    hello = read(records(message(server_name(b"api.example"), extension(0xFE0D, b"secret"))))
    assert hello == ClientHello(Host("api.example"), encrypted=True)


@pytest.mark.parametrize(
    "name",
    [
        *(b"", b".", b"api.example.", b"api.example\0", b"api.example\0.evil.test", b"*.example"),
        *(
            b"127.0.0.1",
            b"[::1]",
            b"::1",
            b"127.1",
            b"b\xfccher.example",
            "bücher.example".encode(),
        ),
        *(b"api.example:443", b"user@api.example", b"api example", b"a" * 254, b"\xff" * 10),
    ],
)
def test_a_name_that_is_no_name_is_refused(name: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read(records(message(server_name(name))))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(message(server_name(b"a.example", b"b.example")), id="two-names"),
        pytest.param(message(server_name()), id="no-name-in-the-list"),
        pytest.param(message(server_name(b"a.example", kind=1)), id="name-of-another-kind"),
        pytest.param(message(extension(0, b"")), id="empty-list-of-names"),
        pytest.param(
            message(server_name(b"a.example"), server_name(b"b.example")), id="names-twice"
        ),
        pytest.param(message(extension(9, b""), extension(9, b"")), id="another-extension-twice"),
        pytest.param(
            message(extension(0, vector(2, b"\0" + vector(2, b"a")) + b"x")), id="more-after-names"
        ),
        pytest.param(message(b"\0\0\0\xff"), id="extension-beyond-the-end"),
        pytest.param(message(b"\0"), id="half-an-extension"),
        pytest.param(message(after=b"x"), id="bytes-left-over"),
        pytest.param(message(extension(16, vector(2, b"\x03h2"))), id="protocol-beyond-the-end"),
        pytest.param(message(extension(16, vector(2, b"\0"))), id="empty-protocol"),
        pytest.param(
            message(extension(16, vector(2, b"\x02h2") + b"x")), id="more-after-protocols"
        ),
        pytest.param(b"\x01" + vector(3, b"\x03\x03" + bytes(20)), id="half-a-hello"),
        pytest.param(b"\x01" + vector(3, b""), id="empty-hello"),
        pytest.param(b"\x02" + message()[1:], id="server-hello"),
    ],
)
def test_a_broken_message_is_refused(data: bytes) -> None:
    for size in (1, 7, 1 << 14):
        with pytest.raises(InvalidRequest, match="ClientHello"):
            read(records(data, size))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"SSH-2.0-x\r\n",
        b"\x80\x2e\x01\x03\x01",  # the hello of SSL 2
        b"\x16\x02",
        b"\x16\xfe\xff",  # over datagrams
        b"\x17\x03\x03\x00\x01x",
        b"\x15\x03\x01\x00\x02\x01\x00",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x40\x01",
        b"\0",
    ],
)
def test_other_protocols_are_told_by_their_first_bytes(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="ClientHello"):
        read(data)


def test_another_message_in_the_same_record_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="another message"):
        read(records(message() + message()))


def test_another_record_between_two_parts_is_refused() -> None:
    half = len(HELLO) // 2
    first, second = records(HELLO[5:half]), records(HELLO[half:])
    assert read(first + second) == read(HELLO)
    with pytest.raises(InvalidRequest, match="no TLS"):
        read(first + b"\x15\x03\x01\x00\x02\x01\x00" + second)


def test_one_that_never_ends_is_refused() -> None:
    reader = ClientHelloReader()
    endless = records(b"\x01\xff\xff\xff" + bytes(MOST_BYTES), 1 << 12)
    with pytest.raises(InvalidRequest, match="longer"):
        for start in range(0, len(endless), 1000):
            reader.feed(endless[start : start + 1000])


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda data: HELLO[:50] + data))
def test_any_bytes_are_read_refused_or_waited_for(data: bytes) -> None:
    try:
        read(data)
    except InvalidRequest as error:
        assert len(error.message) < 500


@given(st.data())
def test_a_changed_byte_never_adds_another_reading(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(HELLO) - 1))
    changed = bytearray(HELLO)
    changed[place] = data.draw(st.integers(0, 255))
    try:
        hello = read(bytes(changed))
    except InvalidRequest:
        return
    if hello is not None and hello.server_name not in (None, Host("api.example")):
        # Only a letter of the name itself makes it another name.
        assert HELLO.find(b"api.example") <= place < HELLO.find(b"api.example") + 11
