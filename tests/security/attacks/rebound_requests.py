# mypy: allow-untyped-defs, allow-untyped-calls
"""Runs inside a sandbox: asks again and again for names whose addresses change while they are asked for.

Standard library only. Reads `{"rounds", "port", "proxied", "direct"}`; each round asks for `proxied` over HTTP and over TLS through the
proxy, and for `direct` at its own listener. Prints how often each way arrived: `{way: count}`.
"""

import json
import socket
import ssl
import sys
from collections import Counter

SECONDS = 60
orders = json.load(sys.stdin)
port = orders["port"]
at = f"{orders['proxied']}:{port}"
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE


def read_all(connection):
    data = b""
    while more := connection.recv(65536):
        data += more
    return b"arrived" in data


def over_http():
    with socket.create_connection(("127.0.0.1", 3128), SECONDS) as connection:
        head = f"GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        return read_all(connection)


def over_tls():
    with socket.create_connection(("127.0.0.1", 3128), SECONDS) as connection:
        connection.sendall(f"CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n".encode())
        if b" 200 " not in connection.recv(65536):
            return False
        with tls.wrap_socket(connection, server_hostname=orders["proxied"]) as secured:
            secured.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return read_all(secured)


def direct():
    with socket.create_connection((orders["direct"], port), SECONDS) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return read_all(connection)


arrived: Counter[str] = Counter()
for _ in range(orders["rounds"]):
    for way in (over_http, over_tls, direct):
        try:
            arrived[way.__name__] += way()
        except OSError:
            pass  # which is how a refusal looks where nothing can be said
print(json.dumps(arrived))
