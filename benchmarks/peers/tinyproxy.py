"""`tinyproxy`: Debian's small HTTP proxy, on loopback, allowed the one port."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Mapping

from benchmarks.ways_out import Way, through
from benchmarks.workshop import Workshop
from tools.places import Failed, must_run
from tools.system_packages import TINYPROXY

_SECONDS = 20.0
_SETTINGS = """
Port {own}
Listen 127.0.0.1
Allow 127.0.0.1
ConnectPort {port}
MaxClients 100
Timeout 60
LogLevel Critical
DisableViaHeader Yes
"""


class Tinyproxy:
    """Runs it for one contest."""

    name = "tinyproxy"

    def __init__(self, workshop: Workshop, port: int, once: Callable[[Way], float]) -> None:
        self._workshop = workshop
        self._port = port
        self._once = once
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> Mapping[str, str]:
        self._workshop.install(TINYPROXY)
        with socket.create_server(("127.0.0.1", 0)) as free:
            own = free.getsockname()[1]
        settings = self._workshop.scratch("tinyproxy") / "tinyproxy.conf"
        settings.write_text(_SETTINGS.format(own=own, port=self._port))
        self._process = subprocess.Popen(
            ["tinyproxy", "-d", "-c", str(settings)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._wait_for(own)
        self._way = through(own, f"127.0.0.1:{self._port}")
        return {"tinyproxy": must_run(["tinyproxy", "-v"]).decode().split()[-1]}

    def run_once(self) -> float:
        try:
            return self._once(self._way)
        except OSError as error:
            raise Failed(f"tinyproxy broke off: {error}") from error

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _wait_for(self, port: int) -> None:
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise Failed("tinyproxy does not listen")
