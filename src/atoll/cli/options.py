"""Options that several commands share, and the sandbox that they add up to."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from atoll.cli.arguments import Misuse, Parser
from atoll.errors import InvalidRequest
from atoll.model.container import ContainerOptions, PullPolicy, Runtime
from atoll.model.hosts import parse_port
from atoll.model.limits import Limits
from atoll.model.network import Network
from atoll.model.sandbox import check_workspace
from atoll.model.sizes import parse_size


@dataclass(frozen=True, slots=True)
class Wish:
    """The sandbox that a command line asks for."""

    engine: str | None = None
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    files: Path | None = None
    keep: Path | None = None
    workspace: str | None = None
    network: Network = field(default_factory=Network)
    container: ContainerOptions | None = None


def add_json(parser: Parser) -> None:
    """Add the switch that every command which tells something has."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_node_files(parser: Parser) -> None:
    """Add where a node keeps its data, and where its settings are."""
    parser.add_argument("--data", metavar="DIR", type=Path, help="data directory; one node each")
    parser.add_argument("--config", metavar="FILE", type=Path, help="settings in TOML")
    parser.add_argument("--env-file", metavar="FILE", type=Path, help="settings as variables")


def node_variables(**chosen: object) -> Mapping[str, str]:
    """Return the settings that a command line chose, as variables; paths are those from here."""
    return {
        name: str(value.absolute() if isinstance(value, Path) else value)
        for name, value in chosen.items()
        if value is not None
    }


def add_engine(parser: Parser) -> None:
    """Add the choice of an engine."""
    parser.add_argument("--engine", metavar="NAME", help="way of isolating; see 'atoll doctor'")
    parser.add_argument(
        "--best-effort",
        action="store_true",
        help="accept limits that the kernel cannot enforce here",
    )


def add_container(parser: Parser) -> None:
    """Add what can be said about a container."""
    parser.add_argument("--image", metavar="NAME", help="its image; for engines docker and podman")
    parser.add_argument("--runtime", choices=get_args(Runtime), help="what runs it; likewise")
    parser.add_argument(
        "--pull",
        choices=get_args(PullPolicy),
        help="when to fetch the image; else if it is missing",
    )


def read_container(options: Namespace) -> dict[str, Any]:
    """Return what was said about the container; raise `Misuse` for what cannot be."""
    names = ("image", "runtime", "pull")
    said = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    try:
        ContainerOptions(**said)
    except InvalidRequest as error:
        raise Misuse(f"--image: {error.message}") from error
    return said


def _local_container(options: Namespace) -> ContainerOptions | None:
    """Return the container for an engine of this command's own; raise `Misuse` if that makes none."""
    said, engine = read_container(options), options.engine
    if not said:
        return None
    # Loaded when it is needed: most runs name no engine and have to be quick.
    from atoll.engines.catalog import CONTAINER_ENGINES

    if engine not in CONTAINER_ENGINES:
        names = " or ".join(f"--engine {name}" for name in CONTAINER_ENGINES)
        made = "" if engine is None else f"; engine {engine} makes no containers"
        raise Misuse(f"--image, --runtime and --pull go with {names}{made}")
    return ContainerOptions(**said)


def add_workspace(parser: Parser) -> None:
    """Add the choice of a workspace that outlives the sandbox."""
    parser.add_argument(
        "--workspace", metavar="ID", help="keep the files under this id; see 'atoll workspace'"
    )
    parser.add_argument("--workspace-size", metavar="SIZE", help="most that it holds, such as 2g")


def add_network(parser: Parser) -> None:
    """Add what the sandbox may reach."""
    parser.add_argument(
        "--network",
        metavar="RULES",
        help="what it may reach: hosts such as api.example:443,*.example, registries, open; else nothing",
    )


def add_private(parser: Parser) -> None:
    """Add the network that the sandbox shares with others of its owner."""
    parser.add_argument(
        "--private", metavar="NETWORK", help="let it find your other sandboxes in this network"
    )
    parser.add_argument(
        "--serve",
        metavar="PORT",
        action="append",
        default=[],
        help="a port that those reach under its name; repeatable",
    )


def read_network(
    options: Namespace, private: str | None = None, ports: Sequence[str] = ()
) -> Network:
    """Return what the sandbox may reach; raise `Misuse` for what cannot be."""
    rules = "none" if options.network is None else options.network
    try:
        return Network.parse(rules, private=private, ports=[parse_port(each) for each in ports])
    except InvalidRequest as error:
        raise Misuse(error.message) from error


def read_workspace(options: Namespace, limits: Limits) -> Limits:
    """Return the limits with the size of the workspace; raise `Misuse` for what cannot be."""
    try:
        if options.workspace is not None:
            check_workspace(options.workspace)
        elif options.workspace_size is not None:
            raise Misuse("--workspace-size needs --workspace: only one that is kept is on disk")
        if options.workspace_size is None:
            return limits
        return replace(limits, workspace_bytes=parse_size(options.workspace_size))
    except InvalidRequest as error:
        raise Misuse(error.message) from error


def add_sandbox(parser: Parser) -> None:
    """Add everything that can be said about a sandbox."""
    parser.add_argument("--memory", metavar="SIZE", help="most memory, such as 256m or 2g")
    parser.add_argument("--cpus", metavar="N", type=float, help="most processors, such as 0.5")
    parser.add_argument("--processes", metavar="N", type=int, help="most processes and threads")
    parser.add_argument(
        "--files", metavar="DIR", type=Path, help="copy DIR into the workspace first"
    )
    parser.add_argument(
        "--keep",
        metavar="DIR",
        type=Path,
        help="copy the workspace to DIR, new or empty, at the end",
    )
    parser.add_argument(
        "--env",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="set a variable; repeatable",
    )
    add_network(parser)
    add_workspace(parser)
    add_engine(parser)
    add_container(parser)


def read_wish(options: Namespace) -> Wish:
    """Return the sandbox that was asked for; raise `Misuse` before anything starts if it cannot be."""
    _check_directories(options.files, options.keep)
    container = _local_container(options)
    limits = read_limits(options.memory, options.cpus, options.processes, options.best_effort)
    return Wish(
        engine=options.engine,
        limits=read_workspace(options, limits),
        env=read_assignments("--env", options.env),
        files=options.files,
        keep=options.keep,
        workspace=options.workspace,
        network=read_network(options),
        container=container,
    )


def read_limits(
    memory: str | None, cpus: float | None, processes: int | None, best_effort: bool
) -> Limits:
    """Return the limits; raise `Misuse` for impossible ones."""
    try:
        limits = Limits(
            memory_bytes=None if memory is None else parse_size(memory),
            cpus=cpus,
            processes=processes,
            enforcement="best_effort" if best_effort else "strict",
        )
        limits.resolve()
    except InvalidRequest as error:
        raise Misuse(error.message) from error
    return limits


def read_assignments(option: str, assignments: Sequence[str]) -> dict[str, str]:
    """Return the values by name of a repeated option, such as `--env NAME=VALUE`."""
    values = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not name or not equals:
            raise Misuse(f"{option} {assignment!r} is not NAME=VALUE")
        values[name] = value
    return values


def _check_directories(files: Path | None, keep: Path | None) -> None:
    if files is not None and not files.is_dir():
        raise Misuse(f"--files {files} is not a directory; name one that exists")
    if keep is None:
        return
    # Checked now: after the run it would be too late to ask for another place.
    if keep.is_symlink() or (keep.exists() and not keep.is_dir()):
        raise Misuse(f"--keep {keep} is not a directory; name a new one")
    if keep.is_dir() and any(keep.iterdir()):
        raise Misuse(f"--keep {keep} is not empty; name a new directory")
    if not keep.parent.is_dir():
        raise Misuse(f"--keep {keep}: {keep.parent} does not exist; make it first")
