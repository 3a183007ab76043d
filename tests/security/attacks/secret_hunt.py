"""Run inside a sandbox: uses secrets in every way, then looks for anything like one in every place. Prints JSON.

Secrets and canaries are a beginning and 32 digits. This program knows the beginning backwards only, so that it finds no trace of itself.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from typing import IO, Any

ORDERS = json.load(sys.stdin)
LIKE = re.compile(ORDERS["backwards"][::-1].encode() + rb"[0-9a-f]{32}")
# Of the host's system, read-only, and the same for every sandbox.
LEFT_OUT = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/sys", "/proc")
CHUNK = 1 << 20


def use(url: str, placeholder: str, place: str) -> list[Any]:
    """Send a request with the placeholder in its place; return all that came back."""
    headers: dict[str, str] = {}
    data: bytes | None = None
    if place == "header":
        headers["X-Api-Key"] = placeholder
    elif place == "basic":
        headers["Authorization"] = (
            "Basic " + base64.b64encode(f"me:{placeholder}".encode()).decode()
        )
    elif place == "query":
        url += "?" + urllib.parse.urlencode({"key": placeholder})
    elif place == "json":
        headers["Content-Type"] = "application/json"
        data = json.dumps({"auth": {"key": placeholder}}).encode()
    else:
        data = urllib.parse.urlencode({"key": placeholder}).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, data, headers), timeout=60
        ) as answer:
            return [answer.status, str(answer.headers), answer.read().decode("latin-1")]
    except urllib.error.HTTPError as error:
        with error:
            return [error.code, str(error.headers), error.read().decode("latin-1")]
    except OSError as error:
        return [0, "", str(error)]


def read_in_chunks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield what a file holds, each piece with the end of the one before."""
    before = b""
    while piece := file.read(CHUNK):
        yield before + piece
        before = piece[-64:]


def search_file(path: str) -> set[bytes]:
    found: set[bytes] = set()
    try:
        with open(path, "rb", buffering=0) as file:
            for piece in read_in_chunks(file):
                found.update(LIKE.findall(piece))
    except OSError:
        pass  # it cannot be read, so nobody here can
    return found


def search_memory(pid: str) -> tuple[set[bytes], int]:
    found: set[bytes] = set()
    looked = 0
    try:
        with (
            open(f"/proc/{pid}/maps") as maps,
            open(f"/proc/{pid}/mem", "rb", buffering=0) as memory,
        ):
            for line in maps:
                start, end = (int(number, 16) for number in line.split()[0].split("-"))
                try:
                    memory.seek(start)
                    left = end - start
                    before = b""
                    while left > 0 and (piece := memory.read(min(CHUNK, left))):
                        found.update(LIKE.findall(before + piece))
                        before = piece[-64:]
                        left -= len(piece)
                        looked += len(piece)
                except (OSError, ValueError, OverflowError):
                    continue  # guard pages and the kernel's own
    except OSError:
        pass
    return found, looked


def search_all() -> tuple[dict[str, set[str]], int]:
    """Return what was found, by where, and how many bytes of memory were looked at."""
    found: dict[str, set[str]] = {}
    looked = 0

    def note(where: str, some: Iterable[bytes]) -> None:
        for each in some:
            found.setdefault(where, set()).add(each.decode())

    for pid in filter(str.isdecimal, os.listdir("/proc")):
        some, size = search_memory(pid)
        note("memory", some)
        looked += size
        for name in ("environ", "cmdline", "auxv", "status", "mountinfo", "net/tcp", "net/unix"):
            note("proc", search_file(f"/proc/{pid}/{name}"))
    for folder, folders, files in os.walk("/"):
        folders[:] = [
            each for each in folders if not os.path.join(folder, each).startswith(LEFT_OUT)
        ]
        for name in files:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                note("files", search_file(path))
    note("environment", LIKE.findall(json.dumps(dict(os.environ)).encode()))
    return found, looked


answers = [
    use(url, os.environ[variable], place)
    for variable, place, urls in ORDERS["uses"]
    for url in urls
]
told = LIKE.findall(json.dumps(answers).encode())
found, looked = search_all()
print(
    json.dumps(
        {
            "statuses": [status for status, _, _ in answers],
            "told": sorted({each.decode() for each in told}),
            "found": {where: sorted(some) for where, some in found.items()},
            "looked": looked,
        }
    )
)
