"""Whether an engine mounted the very directories of the host that were asked for.

It takes paths, and resolves them when the container starts. Meanwhile who can write on the way there, as a sandbox with a mount that
can be written, may exchange a directory for a link to anywhere. The engine's own description tells nothing of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from atoll.engines.mount_rules import HeldSources, is_out_of_reach
from atoll.errors import Unavailable, Unsupported

_CGROUPS = Path("/sys/fs/cgroup")


def attest_sources(
    sources: HeldSources,
    pid: int,
    container_id: str,
    runtime: str | None,
    mountable: Sequence[Path],
) -> None:
    """Raise `Unavailable` unless a started container sees what is held.

    Raises:
        Unsupported: nobody can look from here, and a sandbox could have exchanged it.
    """
    try:
        found = [*sources.differences(_find_process(pid, container_id, runtime))]
    except OSError as error:
        _refuse_what_is_in_reach(sources, mountable, error)
        return
    if found:
        raise Unavailable(
            f"the container is not what was asked for: {'; '.join(found)}; it was removed",
            differences=found,
        )


def _refuse_what_is_in_reach(
    sources: HeldSources, mountable: Sequence[Path], reason: OSError
) -> None:
    for mount in sources.mounts:
        if not is_out_of_reach(mount.source, mountable):
            raise Unsupported(
                f"what was mounted of {mount.source} cannot be looked at from here ({reason.strerror}), and lies where"
                " sandboxes may write: start the node as the engine's own user (root), or mount the whole directory that"
                " the operator lists",
                path=mount.source,
            ) from reason


def _find_process(pid: int, container_id: str, runtime: str | None) -> int:
    """Return a process of this machine that sees what is mounted; raise `OSError` if there is none."""
    text = Path(f"/proc/{pid}/cgroup").read_text()
    # Another engine's process may have that number here.
    if container_id not in text:
        raise ProcessLookupError(0, "its processes are not of this machine")
    if runtime != "runsc":
        return pid
    # Under gVisor that is its gofer; the second kernel has no files.
    for member in _members(text, container_id):
        if "gofer" in Path(f"/proc/{member}/cmdline").read_text().split("\0"):
            return member
    raise ProcessLookupError(0, "it has no gofer")


def _members(cgroups: str, container_id: str) -> Iterator[int]:
    """Yield the processes in the cgroup of a container, from what /proc/PID/cgroup tells."""
    for line in cgroups.splitlines():
        _number, controllers, path = line.split(":", 2)
        procs = _CGROUPS / controllers / path.lstrip("/") / "cgroup.procs"
        if container_id in path and procs.is_file():
            yield from map(int, procs.read_text().split())
            return
