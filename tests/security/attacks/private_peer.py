"""Runs inside a sandbox: serves a port, or speaks to one. `private_peer.py serve|… …`; what it says is JSON."""

import hashlib
import json
import os
import socket
import sys
import threading
import time


def serve(port: int, word: str, address: str = "127.0.0.1") -> None:
    """Tell every client the word, then send back what it sends; a line `hold` is answered by silence."""
    listener = socket.create_server((address, port), backlog=64)
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection, word), daemon=True).start()


def answer(connection: socket.socket, word: str) -> None:
    with connection:
        try:
            connection.sendall(f"{word}\n".encode())
            while data := connection.recv(1 << 16):
                connection.sendall(data)
        except OSError:
            pass  # a client that breaks off


def ask(host: str, port: int) -> str:
    """Return the word of who answers there, or what went wrong."""
    try:
        with (
            socket.create_connection((host, port), 20) as connection,
            connection.makefile("rb") as file,
        ):
            return file.readline().decode().strip() or "closed"
    except OSError as error:
        return type(error).__name__


def keep_asking(host: str, port: int, until: str) -> list[str]:
    """Ask again and again until a file is there; return all that was said, each once."""
    said = set()
    while not os.path.exists(until):
        said.add(ask(host, port))
        time.sleep(0.02)
    return sorted(said)


def transfer(host: str, port: int, size: int) -> list[str]:
    """Send so many bytes and read them back; return the digests of both."""
    sent, received = hashlib.sha256(), hashlib.sha256()
    with socket.create_connection((host, port), 60) as connection:
        while connection.recv(1) != b"\n":
            pass

        def send() -> None:
            left = size
            while left:
                data = os.urandom(min(left, 1 << 20))
                sent.update(data)
                connection.sendall(data)
                left -= len(data)
            connection.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=send)
        thread.start()
        while data := connection.recv(1 << 16):
            received.update(data)
        thread.join()
    return [sent.hexdigest(), received.hexdigest()]


def hold(host: str, port: int) -> str:
    """Stay connected until the other side is no more."""
    with socket.create_connection((host, port), 60) as connection:
        connection.recv(1 << 16)
        print("held", flush=True)
        try:
            return "ended" if connection.recv(1) == b"" else "more"
        except OSError as error:
            return type(error).__name__


def proxy(request: str) -> str:
    """Send one request to the proxy; return the first line of the answer."""
    with socket.create_connection(("127.0.0.1", 3128), 20) as connection:
        connection.sendall(request.replace("\n", "\r\n").encode())
        with connection.makefile("rb") as file:
            return file.readline().decode().strip()


def scan(first: str, count: int, port: int) -> list[str]:
    """Return the addresses of this loopback, from the first on, that answer."""
    start = int.from_bytes(socket.inet_aton(first))
    found = []
    for number in range(start, start + count):
        address = socket.inet_ntoa(number.to_bytes(4))
        with socket.socket() as probe:
            probe.settimeout(5)
            if probe.connect_ex((address, port)) == 0:
                found.append(address)
    return found


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    values = [int(each) if each.isdecimal() else each for each in arguments]
    print(json.dumps(globals()[name](*values)), flush=True)
