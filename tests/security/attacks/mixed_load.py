# mypy: allow-untyped-defs, allow-untyped-calls
"""Runs inside a sandbox: asks for an allowed and for a forbidden host without pause, over HTTP and through tunnels.

Standard library only. Reads `{"allowed", "forbidden", "seconds"}`, both `name:port`; ends after so many seconds, or when there is a file `stop`. Prints how
often there was which outcome: `{"allowed arrived", "allowed nothing", "forbidden refused", …: count}`.
"""

import json
import os
import socket
import sys
import threading
import time
from collections import Counter

orders = json.load(sys.stdin)
counts: Counter[str] = Counter()
guard, end = threading.Lock(), time.monotonic() + orders["seconds"]


def over_http(connection, at):
    connection.sendall(f"GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\n\r\n".encode())
    return read(connection)


def through_a_tunnel(connection, at):
    connection.sendall(f"CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n".encode())
    data = connection.recv(65536)
    if b" 200 " not in data:
        return data
    connection.sendall(f"GET / HTTP/1.1\r\nHost: {at}\r\n\r\n".encode())
    return read(connection)


def read(connection):
    data = b""
    while b"arrived" not in data and b" 403 " not in data and (more := connection.recv(65536)):
        data += more
    return data


def attack(kind, way):
    while time.monotonic() < end and not os.path.exists("stop"):
        try:
            with socket.create_connection(("127.0.0.1", 3128), 5) as connection:
                data = way(connection, orders[kind])
            outcome = (
                "arrived" if b"arrived" in data else "refused" if b" 403 " in data else "nothing"
            )
        except OSError:
            outcome = "nothing"
        with guard:
            counts[f"{kind} {outcome}"] += 1


jobs = [(kind, way) for kind in ("allowed", "forbidden") for way in (over_http, through_a_tunnel)]
threads = [threading.Thread(target=attack, args=job) for job in jobs * 2]
for each in threads:
    each.start()
for each in threads:
    each.join()
print(json.dumps(counts))
