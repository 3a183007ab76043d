# mypy: allow-untyped-defs, allow-untyped-calls
"""Runs inside a sandbox: sends requests byte by byte to its proxy, and tells which of them arrived anywhere.

Standard library only. Reads `[{"head": latin-1, "connect": bool, "name": SNI}]`, prints `[[status, arrived]]`.
"""

import json
import socket
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor

SECONDS = 40


def read_answer(connection):
    data = b""
    try:
        while b"\r\n\r\n" not in data and len(data) < 65536:
            more = connection.recv(65536)
            if not more:
                break
            data += more
        length = 0
        for line in data.partition(b"\r\n\r\n")[0].split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        while len(data.partition(b"\r\n\r\n")[2]) < length:
            more = connection.recv(65536)
            if not more:
                break
            data += more
    except OSError:
        pass
    words = data.split(b" ", 2)
    return (int(words[1]) if len(words) > 1 and words[1].isdigit() else 0), data


def go_through(connection, name):
    """Speak TLS through a tunnel that was granted, as a client would."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(connection, server_hostname=name) as secured:
        secured.sendall(b"GET /through HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return b"arrived" in read_answer(secured)[1]


def attack(task):
    try:
        with socket.create_connection(("127.0.0.1", 3128), SECONDS) as connection:
            connection.sendall(task["head"].encode("latin-1"))
            status, data = read_answer(connection)
            if not task["connect"]:
                return status, b"arrived" in data
            return status, status == 200 and go_through(connection, task["name"])
    except (OSError, ValueError):
        return 0, False


with ThreadPoolExecutor(32) as threads:
    print(json.dumps(list(threads.map(attack, json.load(sys.stdin)))))
