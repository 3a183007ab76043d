"""Bytes through a tunnel: all of them, in order, with their ends, and no more than may pass."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from atoll.egress.tunnels import Tunnel, TunnelEnded
from tests.campaigns import Campaign

MUCH = 20_000_000


@dataclass
class Allowed:
    left: int = 1 << 62
    reason: str = "enough"

    def count(self, size: int) -> None:
        self.left -= size


@dataclass
class Ends:
    """The tunnel's two sockets, and those at their other ends."""

    near: socket.socket
    near_far: socket.socket
    far: socket.socket
    far_near: socket.socket

    def tunnel(self, up: Allowed, down: Allowed, idle_seconds: float = 60) -> Tunnel:
        return Tunnel(self.near_far, self.far_near, up, down, idle_seconds=idle_seconds)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    one.setblocking(False)
    other.setblocking(False)
    return one, other


@pytest.fixture
def ends() -> Iterator[Ends]:
    sockets = (*tcp_pair(), *tcp_pair())
    yield Ends(*sockets)
    for each in sockets:
        each.close()


async def send_all(target: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(target, data)
    target.shutdown(socket.SHUT_WR)


async def read_all(source: socket.socket) -> bytes:
    data = bytearray()
    while more := await asyncio.get_running_loop().sock_recv(source, 1 << 18):
        data += more
    return bytes(data)


async def test_much_passes_both_ways_at_once_and_unchanged(ends: Ends) -> None:
    up, down = os.urandom(MUCH), os.urandom(MUCH)
    tunnel = ends.tunnel(Allowed(), Allowed())
    _, _, _, arrived, returned = await asyncio.gather(
        tunnel.run(b"early ", b"greeting "),
        send_all(ends.near, up),
        send_all(ends.far, down),
        read_all(ends.far),
        read_all(ends.near),
    )
    assert arrived == b"early " + up
    assert returned == b"greeting " + down
    assert tunnel.up_bytes == MUCH + len("early ")
    assert tunnel.down_bytes == MUCH + len("greeting ")


async def test_any_sizes_and_pauses_pass_unchanged(ends: Ends, campaign: Campaign) -> None:
    pieces = [
        os.urandom(campaign.random.choice((1, 1000, 65_536, 70_000, 700_000)))
        for _ in range(campaign.count(600))
    ]
    loop = asyncio.get_running_loop()

    async def send_pieces() -> None:
        for piece in pieces:
            await loop.sock_sendall(ends.near, piece)
            await asyncio.sleep(campaign.random.choice((0, 0, 0.001)))
        ends.near.shutdown(socket.SHUT_WR)

    running = asyncio.create_task(ends.tunnel(Allowed(), Allowed()).run())
    sending = asyncio.create_task(send_pieces())
    assert await read_all(ends.far) == b"".join(pieces)
    ends.far.shutdown(socket.SHUT_WR)
    await sending
    await running


async def test_one_side_may_end_long_before_the_other(ends: Ends) -> None:
    running = asyncio.create_task(ends.tunnel(Allowed(), Allowed()).run())
    await send_all(ends.near, b"question")
    assert await read_all(ends.far) == b"question"
    await asyncio.sleep(0.05)
    assert not running.done()
    await send_all(ends.far, b"answer" * 100_000)
    assert await read_all(ends.near) == b"answer" * 100_000
    await running


@pytest.mark.parametrize("cap", [0, 1, 1000, 300_000, 3_000_000])
async def test_not_one_byte_passes_beyond_the_cap(ends: Ends, cap: int) -> None:
    tunnel = ends.tunnel(Allowed(), Allowed(cap))
    sending = asyncio.create_task(send_all(ends.far, bytes(8_000_000)))
    reading = asyncio.create_task(read_all(ends.near))
    with pytest.raises(TunnelEnded, match="enough"):
        await tunnel.run()
    assert tunnel.down_bytes == cap
    ends.near_far.shutdown(socket.SHUT_WR)
    assert len(await reading) <= cap
    sending.cancel()
    await asyncio.wait([sending])


async def test_a_tunnel_in_which_nothing_moves_ends(ends: Ends) -> None:
    with pytest.raises(TunnelEnded, match="nothing was sent"):
        await ends.tunnel(Allowed(), Allowed(), idle_seconds=0.05).run()


async def test_a_side_that_breaks_off_ends_it(ends: Ends) -> None:
    running = asyncio.create_task(ends.tunnel(Allowed(), Allowed()).run())
    ends.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    ends.far.close()
    with pytest.raises(ConnectionResetError):
        await running


async def test_without_descriptors_for_pipes_it_copies(ends: Ends) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), hard))
    try:
        running = asyncio.create_task(ends.tunnel(Allowed(), Allowed()).run())
        sending = asyncio.create_task(send_all(ends.near, bytes(MUCH)))
        assert await read_all(ends.far) == bytes(MUCH)
        ends.far.shutdown(socket.SHUT_WR)
        await sending
        await running
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_nothing_is_left_open_however_it_ends(ends: Ends) -> None:
    before = set(os.listdir("/proc/self/fd"))
    running = asyncio.create_task(ends.tunnel(Allowed(), Allowed()).run())
    sending = asyncio.create_task(send_all(ends.near, bytes(MUCH)))
    # Nobody reads, so both pipes and sockets are full when it is ended.
    while pipes_open() == 0:
        await asyncio.sleep(0.01)
    for task in (running, sending):
        task.cancel()
    await asyncio.wait([running, sending])
    # Others in this process may close some of theirs meanwhile.
    assert set(os.listdir("/proc/self/fd")) <= before


def pipes_open() -> int:
    links = Path("/proc/self/fd").iterdir()
    return sum(os.readlink(link).startswith("pipe:") for link in links if link.is_symlink())
