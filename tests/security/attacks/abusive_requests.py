# mypy: allow-untyped-defs, allow-untyped-calls
"""Runs inside a sandbox: sends its proxy requests that can be read in two ways, are broken, too large or too slow.

Standard library only. Reads `{"host", "seed", "seconds"}`; what each tries to smuggle is a request for `/smuggled`. Prints how many
connections were made, and how they were answered: `{"connections", "statuses": {status: count}}`.
"""

import json
import random
import re
import socket
import sys
import threading
import time
from collections import Counter

orders = json.load(sys.stdin)
host, end = orders["host"], time.monotonic() + orders["seconds"]
url = f"http://{host}/open"
smuggled = f"GET http://{host}/smuggled HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
statuses: Counter[str] = Counter()
guard = threading.Lock()

LENGTHS = [
    "Content-Length: 0",
    "Content-Length: 5",
    "Content-Length: +5",
    "Content-Length: 5, 5",
    "Content-Length: 0x5",
    "Content-Length: -1",
    "Content-Length: 5\r\nContent-Length: 0",
    "Content-Length : 5",
    "Content-Length: 99999999999999999999",
    "Content_Length: 5",
]
ENCODINGS = [
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding : chunked",
    "Transfer-Encoding:\x0bchunked",
    "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: identity, chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
    'Transfer-Encoding: "chunked"',
    "Transfer-Encoding:\r\n chunked",
    "X: y\nTransfer-Encoding: chunked",
    "transfer-encoding: CHUNKED",
    "Transfer-Encoding: gzip, chunked",
]
OTHERS = [
    "Host: evil.test",
    "Connection: content-length",
    "Connection: transfer-encoding, close",
    "X: " + "y" * 70_000,
    "Expect: 100-continue",
    "Upgrade: h2c\r\nConnection: Upgrade",
    "X\0: y",
    "Trailer: Host",
    "X: \xff\xfe",
    " folded: line",
    "Proxy-Connection: host",
    "TE: trailers",
]
CHUNKS = [
    b"0\r\n\r\n",
    b"5\r\nabcde\r\n0\r\n\r\n",
    b"5\nabcde\n0\n\n",
    b'5;x="\r\n"\r\nabcde\r\n0\r\n\r\n',
    b"05\r\nabcde\r\n0\r\n\r\n",
    b"5 \r\nabcde\r\n0\r\n\r\n",
    b"0\r\nHost: evil.test\r\n\r\n",
    b"-0\r\n\r\n",
    b"fffffffffffffffff\r\n",
    b"5\r\nabcdeX\r\n0\r\n\r\n",
    b"0x5\r\nabcde\r\n0\r\n\r\n",
    b"\r\n0\r\n\r\n",
]


def make(chance):
    """Return one abuse, in pieces: mostly ordinary, with one or two things that are not."""
    method = chance.choice(["POST"] * 8 + ["GET", "HEAD", "PUT", "post", "CONNECT"])
    version = chance.choice(["HTTP/1.1"] * 20 + ["HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "http/1.1"])
    lengths, encodings = ["Content-Length: 5", *LENGTHS], ["Transfer-Encoding: chunked", *ENCODINGS]
    framing = chance.choice(
        [lengths[:1], encodings[:1], lengths[:1], encodings[:1], lengths, encodings]
    )
    lines = [f"Host: {host}", chance.choice(framing)]
    lines += chance.sample(LENGTHS + ENCODINGS + OTHERS, chance.choice([0, 0, 0, 1, 1, 2]))
    chance.shuffle(lines)
    targets = [url] * 20 + [url + "#x", "/open", "*", url + "\t/"]
    target = host if method == "CONNECT" else chance.choice(targets)
    line_end = chance.choice(["\r\n"] * 30 + ["\n", "\r", "\r\r\n"])
    head = line_end.join([f"{method} {target} {version}", *lines, "", ""]).encode("latin-1")
    body = chance.choice([b"", b"abcde", b"abcde", CHUNKS[1], CHUNKS[1], *CHUNKS])
    whole = head + body + smuggled * chance.choice([1, 1, 2])
    if chance.random() < 0.3:
        cut = chance.randrange(len(whole))
        return [whole[:cut], whole[cut:]]
    if chance.random() < 0.1:
        return [whole[: chance.randrange(len(whole))]]  # and never more
    return [whole]


def send(pieces, chance):
    with socket.create_connection(("127.0.0.1", 3128), 30) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(chance.choice([0, 0, 0.01]))
        except OSError:
            pass  # it was refused before it was whole
        connection.settimeout(chance.choice([0.05, 0.5, 0.5]))
        data = b""
        try:
            while more := connection.recv(65536):
                data += more
        except OSError:
            pass
    return re.findall(rb"HTTP/1\.1 (\d{3}) ", data) or [b"none"]


def attack(seed):
    chance = random.Random(seed)
    while time.monotonic() < end:
        try:
            found = send(make(chance), chance)
        except OSError as error:
            found = [type(error).__name__.encode()]
        with guard:
            statuses["connections"] += 1
            statuses.update(each.decode() for each in found)


threads = [
    threading.Thread(target=attack, args=(f"{orders['seed']} {number}",)) for number in range(8)
]
for each in threads:
    each.start()
for each in threads:
    each.join()
print(json.dumps({"connections": statuses.pop("connections"), "statuses": statuses}))
