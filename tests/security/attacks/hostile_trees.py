"""Makes trees that are hard to read, to copy and to delete; the argument says which."""

from __future__ import annotations

import os
import socket
import sys
from functools import partial

from tests.security.attacks.kernel import attempt, report

TOP = "/workspace/tree"


def main() -> None:
    os.mkdir(TOP)
    os.chdir(TOP)
    {
        "deep": deep,
        "wide": wide,
        "sparse": sparse,
        "special": special,
        "closed": closed,
        "odd": odd,
    }[sys.argv[1]]()
    report(made=True)


def deep() -> None:
    """1,500 folders, one in another, which is longer than a path may be."""
    for _ in range(1500):
        os.mkdir("in")
        os.chdir("in")
    with open("bottom", "w") as file:
        file.write("bottom")


def wide() -> None:
    """20,000 entries in one folder."""
    for number in range(20_000):
        os.close(os.open(f"{number:05}", os.O_CREAT | os.O_WRONLY))


def sparse() -> None:
    """Files of up to 1 TiB without a byte in them, as far as the limit on files lets them."""
    for number in range(4):
        fd = os.open(f"giant{number}", os.O_CREAT | os.O_RDWR)
        size = 1 << 40
        while size and attempt(partial(os.truncate, fd, size)) != "OK":
            size >>= 1


def special() -> None:
    """Pipes, sockets and links without end."""
    os.mkfifo("pipe")
    socket.socket(socket.AF_UNIX).bind("socket")
    os.symlink("endless", "endless")
    os.symlink("/dev/zero", "device")
    os.symlink("/dev/ptmx", "terminal")
    os.symlink("pipe", "link-to-pipe")


def closed() -> None:
    """Folders and files that keep their owner out."""
    for name in ("a", "b", "c"):
        os.makedirs(f"{name}/inner")
        with open(f"{name}/inner/file", "w") as file:
            file.write("x")
        os.chmod(f"{name}/inner/file", 0)
        os.chmod(f"{name}/inner", 0)
        os.chmod(name, 0)


def odd() -> None:
    """Names of 255 bytes, that are no text, with line ends, quotes, markup and directions."""
    for name in (
        b"n" * 255,
        b"\xff\xfe not text",
        b"line\r\nSet-Cookie: a=b",
        b"<img src=x onerror=alert(1)>",
        b"quote\"'`$(id)`",
        b"-rf",
        b"..hidden",
        b" ",
        b"\\..\\..\\windows",
        b"%2e%2e%2f",
        "\u202etxt.exe".encode(),
        "é".encode(),
        "e\u0301".encode(),
        b"Upper",
        b"upper",
        b"\x1b[2J\x1b]52;c;aGk=\x07",
    ):
        with open(name, "wb") as file:
            file.write(b"x")


if __name__ == "__main__":
    main()
