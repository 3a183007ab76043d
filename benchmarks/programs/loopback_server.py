"""A web server for `egress`: answers `GET /N` with N bytes. Every order is answered with its port."""

from __future__ import annotations

import asyncio
import json
import sys

_PIECE = bytes(1 << 20)


async def main() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=512)
    await asyncio.to_thread(follow, server.sockets[0].getsockname()[1])


def follow(port: int) -> None:
    for _ in sys.stdin:
        print(json.dumps({"port": port}), flush=True)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while line := await reader.readline():
            while (await reader.readline()).strip():
                pass
            await send_bytes(writer, int(line.split()[1].rpartition(b"/")[2]))
    except ConnectionError:
        pass  # the client has what it wants
    finally:
        writer.close()


async def send_bytes(writer: asyncio.StreamWriter, size: int) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
    while size > 0:
        writer.write(_PIECE[:size])
        await writer.drain()
        size -= len(_PIECE)


asyncio.run(main())
