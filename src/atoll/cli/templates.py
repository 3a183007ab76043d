"""What `atoll template` does: with the data directory, as `atoll run` does, or with the node that ATOLL_URL names."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.cli.messages import printable
from atoll.cli.tables import print_table, round_age
from atoll.client.places import data_directory
from atoll.engines.catalog import DEFAULT_ENGINE
from atoll.errors import Unsupported
from atoll.model.image import parse_image
from atoll.model.packages import parse_packages
from atoll.model.sizes import format_size
from atoll.model.template import TemplateInfo
from atoll.node.templates import Templates, check_built_name

if TYPE_CHECKING:
    from atoll.client.http import HttpNode
    from atoll.node.node import Node
    from atoll.node.template_builds import TemplateBuilds

_HEADINGS = ("NAME", "DIGEST", "BUILT", "OF", "LOADED")
_SHORT = 12
Answer = TypeVar("Answer")


def build(
    name: str,
    packages: Sequence[str],
    language: str,
    preload: Sequence[str] | None,
    *,
    as_json: bool,
) -> int:
    """Build a template, telling what the installer says, and print it."""
    check_built_name(name)
    wanted = parse_packages(packages, language)
    if _names_node():
        told = {"packages": list(wanted), "language": language, "preload": preload}
        return _run_on_node(partial(_build_remote, {"name": name, **told}, as_json))
    return _build_here(
        lambda builds: partial(
            builds.build, name, wanted, language=language, preload=preload, report=_tell
        ),
        as_json,
    )


def build_image(name: str, image: str, *, as_json: bool) -> int:
    """Build a template of an image, telling how far it is, and print it."""
    check_built_name(name)
    parse_image(image)
    if _names_node():
        return _run_on_node(partial(_build_image_remote, name, image, as_json))
    return _build_here(
        lambda builds: partial(builds.build_image, name, image, report=_tell), as_json
    )


def build_dockerfile(
    name: str, folder: str, *, engine: str, is_unpacked: bool, as_json: bool
) -> int:
    """Build a template of a Dockerfile, telling what its steps say, and print it."""
    check_built_name(name)
    _refuse_node("a Dockerfile is built on the server's own machine: run this there")
    return _build_here(
        lambda builds: partial(
            builds.build_dockerfile,
            name,
            Path(folder),
            engine=engine,
            is_unpacked=is_unpacked,
            report=_tell,
        ),
        as_json,
        engine,
    )


def pull(image: str, *, engine: str, as_json: bool) -> int:
    """Have a container engine fetch an image, telling how far it is, and print its id."""
    _refuse_node("images are pulled on the server's own machine: run this there")
    made = _call_here(
        lambda node: partial(node.image_work(engine).pull_image, image, _tell), engine
    )
    print(json.dumps({"image": image, "id": made}) if as_json else made, flush=True)
    return 0


def build_tagged(folder: Path, tag: str, engine: str) -> str:
    """Have a container engine build an image of a directory, telling what its steps say; return its id."""
    return _call_here(
        lambda node: partial(node.builds.build_tagged, folder, tag, engine, _tell), engine
    )


def _build_here(
    work: Callable[[TemplateBuilds], Callable[[], Awaitable[TemplateInfo]]],
    as_json: bool,
    engine: str = DEFAULT_ENGINE,
) -> int:
    return _print(_fields(_call_here(lambda node: work(node.builds), engine)), as_json)


def _call_here(work: Callable[[Node], Callable[[], Awaitable[Answer]]], engine: str) -> Answer:
    """Have something done by a node of this command's own."""
    from atoll.client.embedded import close_nodes, share_node

    node = share_node(engine)
    try:
        return node.portal.call(work(node.sandboxes))
    finally:
        close_nodes()


def _refuse_node(reason: str) -> None:
    if _names_node():
        raise Unsupported(f"ATOLL_URL names a server, but {reason}", next_step="unset ATOLL_URL")


def show_all(*, as_json: bool) -> int:
    """Print all templates that were built."""
    if _names_node():
        return _run_on_node(partial(_show_all_remote, as_json))
    return _print_all([_fields(info) for info in _templates().list()], as_json)


def show(name: str, *, as_json: bool) -> int:
    """Print all that is known of one."""
    if _names_node():
        return _run_on_node(partial(_show_remote, name, as_json))
    return _print(_fields(_templates().find(name)), as_json)


def remove(names: Sequence[str], *, as_json: bool) -> int:
    """Remove some, and print which."""
    if _names_node():
        return _run_on_node(partial(_remove_remote, names, as_json))
    templates = _templates()
    # All are found before the first one goes: a mistyped name removes nothing.
    for name in names:
        templates.find(name)
    for name in names:
        templates.remove(name)
    return _print_removed(names, as_json)


def _templates() -> Templates:
    return Templates(data_directory())


def _names_node() -> bool:
    return bool(os.environ.get("ATOLL_URL"))


def _run_on_node(work: Callable[[HttpNode], Awaitable[int]]) -> int:
    # Loaded when a node is named: it needs more than is installed for embedded use.
    from atoll.cli.nodes import run_on_node

    return run_on_node(work)


async def _build_remote(body: dict[str, Any], as_json: bool, node: HttpNode) -> int:
    return _print(await node.call("POST", "/templates", body=body), as_json)


async def _build_image_remote(name: str, image: str, as_json: bool, node: HttpNode) -> int:
    from atoll.client.remote.image_sending import build_of_image

    return _print(await build_of_image(node, name, image), as_json)


async def _show_all_remote(as_json: bool, node: HttpNode) -> int:
    return _print_all(await node.call("GET", "/templates"), as_json)


async def _show_remote(name: str, as_json: bool, node: HttpNode) -> int:
    return _print(await node.call("GET", f"/templates/{name}"), as_json)


async def _remove_remote(names: Sequence[str], as_json: bool, node: HttpNode) -> int:
    for name in names:
        await node.call("GET", f"/templates/{name}")
    for name in names:
        await node.call("DELETE", f"/templates/{name}")
    return _print_removed(names, as_json)


def _tell(line: str) -> None:
    # What an installer says goes to people, not into a pipe.
    print(printable(line), file=sys.stderr, flush=True)


def _fields(info: TemplateInfo) -> dict[str, Any]:
    made = datetime.fromtimestamp(info.made_at, UTC).isoformat().replace("+00:00", "Z")
    return {**asdict(info), "made_at": made}


def _print(template: dict[str, Any], as_json: bool) -> int:
    if as_json:
        print(json.dumps(template), flush=True)
        return 0
    print_table(
        [
            ("name", template["name"]),
            ("digest", f"sha256:{template['digest']}"),
            *(_image_rows(template) if template["image"] else _package_rows(template)),
            ("built", template["made_at"]),
        ]
    )
    return 0


def _package_rows(template: dict[str, Any]) -> Sequence[tuple[str, str]]:
    return [
        ("packages", " ".join(template["packages"])),
        ("language", template["language"]),
        ("loaded", " ".join(template["preload"]) or "-"),
        ("holds", " ".join(template["distributions"])),
    ]


def _image_rows(template: dict[str, Any]) -> Sequence[tuple[str, str]]:
    env = " ".join(printable(f"{name}={value}") for name, value in template["env"].items())
    return [
        ("image", template["image"]),
        ("size", format_size(template["size_bytes"])),
        ("environment", env or "-"),
        ("engines", " ".join(template["engines"]) or "-"),
    ]


def _print_all(templates: Sequence[dict[str, Any]], as_json: bool) -> int:
    if as_json:
        print(json.dumps(templates), flush=True)
    else:
        print_table([_HEADINGS, *map(_row, templates)])
    return 0


def _row(template: dict[str, Any]) -> Sequence[str]:
    age = datetime.now(UTC) - datetime.fromisoformat(template["made_at"])
    return (
        template["name"],
        template["digest"][:_SHORT],
        f"{round_age(age.total_seconds())} ago",
        template["image"] or " ".join(template["packages"]),
        " ".join(template["preload"]) or "-",
    )


def _print_removed(names: Sequence[str], as_json: bool) -> int:
    print(json.dumps(list(names)) if as_json else "\n".join(names), flush=True)
    return 0
