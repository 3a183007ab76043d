"""What is written on a container: whose it is, so that whoever finds it can tell, long after we are gone."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.errors import Conflict
from atoll.model.container import OWN_LABELS
from atoll.model.sandbox import SandboxSpec

NODE = f"{OWN_LABELS}node"
SANDBOX = f"{OWN_LABELS}sandbox"
GENERATION = f"{OWN_LABELS}generation"
OWNER = f"{OWN_LABELS}owner"
DIGEST = f"{OWN_LABELS}digest"
SPEC = f"{OWN_LABELS}spec"
PERSISTENT = f"{OWN_LABELS}persistent"
VOLUME = f"{OWN_LABELS}volume"
USER = f"{OWN_LABELS}user"  # that no other container has


@dataclass(frozen=True, slots=True)
class Program:
    """A running program, told from one that has its number later, or on another machine."""

    boot: str
    pid_namespace: str
    pid: int
    started: str

    def __str__(self) -> str:
        return f"{self.boot}/{self.pid_namespace}/{self.pid}/{self.started}"

    @classmethod
    def parse(cls, text: str) -> Program | None:
        """Return the program that a label names, if it names one."""
        parts = text.split("/")
        if len(parts) != 4 or not parts[2].isdecimal():
            return None
        return cls(parts[0], parts[1], int(parts[2]), parts[3])

    def is_surely_gone(self, here: Program) -> bool:
        """Whether it has ended; one that cannot be seen from `here` may be alive."""
        if self.boot != here.boot:
            return True
        return self.pid_namespace == here.pid_namespace and self.started != _started(self.pid)


def this_program() -> Program:
    """Return who we are."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = str(os.stat("/proc/self/ns/pid").st_ino)
    return Program(boot, namespace, os.getpid(), _started(os.getpid()))


def _started(pid: int) -> str:
    """Return when a process was started, in ticks of the kernel's; nothing if there is none."""
    try:
        # Its name, in brackets, may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def node_id(data_dir: Path) -> str:
    """Return the id of the node that has this directory, made on first use."""
    path = data_dir / "containers-node"
    data_dir.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    if not path.exists():
        fresh.write_text(secrets.token_hex(16))
        with suppress(FileExistsError):  # another program was quicker
            os.link(fresh, path)
        fresh.unlink()
    return path.read_text().strip()


def digest_of(body: Mapping[str, Any]) -> str:
    """Return a short name of a configuration."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:32]


def owner_labels(node: str, owner: Program) -> dict[str, str]:
    """Return what is written on whatever a program of a node makes, so that the next one finds it."""
    return {NODE: node, OWNER: str(owner)}


def labels_of(spec: SandboxSpec, node: str, owner: Program) -> dict[str, str]:
    """Return what is written on the container of a sandbox."""
    return {
        **owner_labels(node, owner),
        SANDBOX: spec.id,
        GENERATION: "1",
        DIGEST: digest_of(spec.to_json()),
        SPEC: json.dumps(spec.to_json(), sort_keys=True),
        PERSISTENT: "true" if spec.persistent else "false",
        # Of a container alone: an engine may unmount that of an earlier one of the same sandbox late, and by its name.
        VOLUME: f"atoll-{spec.id}-{secrets.token_hex(4)}",
    }


def own_labels(marks: Mapping[str, str], spec: SandboxSpec, node: str) -> dict[str, str]:
    """Return what we once wrote on the container of a persistent sandbox.

    Raises:
        Conflict: it is somebody else's, or its labels are not those that were written.
    """
    own = {name: value for name, value in marks.items() if name.startswith(OWN_LABELS)}
    written = spec_of(own)
    is_ours = (own.get(NODE), own.get(SANDBOX)) == (node, spec.id) and own.get(PERSISTENT) == "true"
    if not is_ours or written.get("id") != spec.id or digest_of(written) != own.get(DIGEST):
        raise Conflict(
            f"the container that goes by the name of sandbox {spec.id} is not one that this node has stopped;"
            " whoever made it has to remove it first",
            sandbox=spec.id,
        )
    return own


def workspace_of(marks: Mapping[str, str]) -> str | None:
    """Return the directory of the workspace that a container's sandbox has, if labels tell."""
    workspace = spec_of(marks).get("workspace")
    directory = workspace.get("directory") if isinstance(workspace, dict) else None
    return directory if isinstance(directory, str) else None


def spec_of(marks: Mapping[str, str]) -> dict[str, Any]:
    """Return what a container was made from, for `SandboxSpec.from_json`; nothing if labels do not tell."""
    try:
        parsed = json.loads(marks.get(SPEC, ""))
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
