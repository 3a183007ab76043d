"""A registry of container images on the loopback: Debian's own, with a folder of the tests'."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, Self

PROGRAM = "docker-registry"

_START_SECONDS = 60
_CALL_SECONDS = 60
_KINDS = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
)


class LoopbackRegistry:
    """One that runs, without TLS and for everybody."""

    def __init__(self, address: str) -> None:
        self.address = address

    @classmethod
    @contextmanager
    def running(cls, folder: Path) -> Iterator[Self]:
        """Run one until the end, on a port that is free."""
        settings = {
            "version": "0.1",
            "log": {"level": "info", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
            "http": {"addr": "127.0.0.1:0"},
        }
        # What is JSON is YAML.
        (folder / "settings.yml").write_text(json.dumps(settings))
        command = ["setpriv", "--pdeathsig", "KILL", PROGRAM, "serve", str(folder / "settings.yml")]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            yield cls(_address(process, folder / "log"))
        finally:
            process.kill()
            process.wait()

    def point(self, path: str, tag: str, to: str) -> None:
        """Let a tag stand for what another one stands for, as if that had been pushed anew."""
        with self._ask(path, to) as answer:
            manifest, kind = answer.read(), answer.headers["Content-Type"]
        self._ask(path, tag, method="PUT", data=manifest, headers={"Content-Type": kind}).close()

    def digest(self, path: str, tag: str) -> str:
        """Return what a tag stands for."""
        with self._ask(path, tag) as answer:
            return str(answer.headers["Docker-Content-Digest"])

    def _ask(self, path: str, tag: str, **request: Any) -> HTTPResponse:
        url = f"http://{self.address}/v2/{path}/manifests/{tag}"
        # None of the proxies that this machine may have.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        asked = urllib.request.Request(url, **{"headers": {"Accept": ", ".join(_KINDS)}, **request})
        answer = opener.open(asked, timeout=_CALL_SECONDS)
        assert isinstance(answer, HTTPResponse)
        return answer


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Return where it listens, which it says in its log."""
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if said := re.search(r"listening on (127\.0\.0\.1:[0-9]+)", log.read_text()):
            return said[1]
        time.sleep(0.05)
    raise TimeoutError(f"the registry did not come up: {log.read_text()}")
