"""The TCP door's socket: what is taken or cannot be had is told in words, and answers are not held back."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest

from atoll.errors import Conflict, Unavailable
from atoll.server.sockets import open_tcp

pytestmark = pytest.mark.any_user


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_connections_send_at_once_what_they_are_given(host: str) -> None:
    with open_tcp(host, 0) as listener:
        address, port = listener.getsockname()[:2]
        with socket.create_connection((address, port)), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_that_is_taken() -> None:
    with open_tcp("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(Conflict, match=f"127.0.0.1:{port}"), open_tcp("127.0.0.1", port):
            pass


@pytest.mark.parametrize("host", ["192.0.2.1", "name.invalid"])
def test_an_address_that_is_not_of_this_machine(host: str) -> None:
    with pytest.raises(Unavailable, match="cannot listen at") as refused, open_tcp(host, 0):
        pass
    assert "--host" in refused.value.details["next_step"]


def test_a_port_is_free_again_at_once() -> None:
    # Another program may be given it in between, but not every time.
    for _ in range(10):
        with open_tcp("127.0.0.1", 0) as listener:
            port = listener.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port)), listener.accept()[0]:
                pass
        with suppress(Conflict), open_tcp("127.0.0.1", port):
            return
    raise AssertionError("it never was")
