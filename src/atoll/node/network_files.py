"""Host directories with what a sandbox's network needs inside, one for each sandbox that needs any; seen there read-only."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from ipaddress import IPv4Address
from pathlib import Path

from atoll.errors import Unavailable
from atoll.model.ids import SandboxId
from atoll.model.sandbox import HOSTS

_NAMES = "hosts"
# After it come the members of a private network, which change.
_PEERS = "# private network\n"


class NetworkFiles:
    """The directories of one node, or of one program with sandboxes of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # A file that is put into a directory while that is removed would keep it there.
        self._changing = threading.RLock()

    @classmethod
    def of_program(cls, folder: Path) -> NetworkFiles:
        """Return those of this process; what programs left that were killed is removed."""
        with suppress(OSError):
            for each in folder.iterdir():
                if each.name.isdecimal() and not Path("/proc", each.name).exists():
                    shutil.rmtree(each, ignore_errors=True)
        return cls(folder / str(os.getpid()))

    def write(
        self,
        sandbox: SandboxId,
        names: Mapping[str, str],
        files: Mapping[str, bytes],
        *,
        peers: bool = False,
    ) -> str:
        """Make a sandbox's directory, with addresses of names and other files; return its path. Raises `Unavailable`.

        With `peers` it can `show_peers`.
        """
        directory = self._folder / sandbox
        hosts = HOSTS + "".join(f"{address} {name}\n" for name, address in names.items())
        hosts += _PEERS if peers else ""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            directory.mkdir()
            directory.chmod(0o755)  # whatever the umask: a sandbox has another id
            for name, content in {**files, _NAMES: hosts.encode()}.items():
                (directory / name).write_bytes(content)
                (directory / name).chmod(0o644)
        except OSError as error:
            self.remove(sandbox)
            raise Unavailable(
                f"the network of a sandbox cannot be set up in {self._folder}: {error.strerror}"
            ) from error
        return str(directory)

    def replace(self, sandbox: SandboxId, name: str, content: bytes) -> None:
        """Put another file in place of one of a sandbox's; whoever reads it sees one of both. Raises `Unavailable`."""
        path = self._folder / sandbox / name
        fresh = path.with_name(f"{name}.new")
        try:
            with self._changing:
                fresh.write_bytes(content)
                fresh.chmod(0o644)
                fresh.rename(path)
        except OSError as error:
            raise Unavailable(
                f"the network of a sandbox cannot be set up in {self._folder}: {error.strerror}"
            ) from error

    def names(self, sandbox: SandboxId) -> Mapping[IPv4Address, str]:
        """Return the names of a sandbox's rules by their addresses."""
        return _parse_names(self._read(sandbox)[0].removeprefix(HOSTS))

    def takes_peers(self, sandbox: SandboxId) -> bool:
        """Whether a sandbox was made to find others by their names."""
        return bool(self._read(sandbox)[1])

    def peers(self, sandbox: SandboxId) -> Mapping[IPv4Address, str]:
        """Return the first names of a sandbox's peers by their addresses."""
        return _parse_names(self._read(sandbox)[2])

    def show_peers(self, sandbox: SandboxId, names: Mapping[str, Sequence[str]]) -> None:
        """Let a sandbox find these peers, by address their names, and no others. Raises `Unavailable`."""
        lines = "".join(f"{address} {' '.join(each)}\n" for address, each in names.items())
        with self._changing:
            before, mark, _ = self._read(sandbox)
            if mark:
                self.replace(sandbox, _NAMES, f"{before}{mark}{lines}".encode())

    def _read(self, sandbox: SandboxId) -> tuple[str, str, str]:
        try:
            return (self._folder / sandbox / _NAMES).read_text().partition(_PEERS)
        except OSError:
            return "", "", ""

    def remove(self, sandbox: SandboxId) -> None:
        """Remove a sandbox's directory; safe to call twice."""
        with self._changing:
            shutil.rmtree(self._folder / sandbox, ignore_errors=True)

    def keep_only(self, sandboxes: Collection[str]) -> None:
        """Remove the directories of all other sandboxes."""
        with suppress(OSError):
            for each in self._folder.iterdir():
                if each.name not in sandboxes:
                    shutil.rmtree(each, ignore_errors=True)

    def remove_all(self) -> None:
        """Remove everything."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _parse_names(text: str) -> Mapping[IPv4Address, str]:
    lines = [line.split() for line in text.splitlines()]
    return {IPv4Address(line[0]): line[1] for line in lines}
