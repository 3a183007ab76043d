"""All that the doctor finds out about this machine, and how it is shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import anyio

from atoll.cli.environment import search_path
from atoll.cli.messages import colour, printable
from atoll.cli.sandboxes import make_local_engine
from atoll.client.places import data_directory
from atoll.engines import catalog
from atoll.engines.contract import Check, Feature
from atoll.errors import AtollError
from atoll.node.doctor import examine
from atoll.node.egress_check import check_way_out
from atoll.node.host import this_machine


@dataclass(frozen=True, slots=True)
class Examination:
    """Checks of each engine, and of the machine itself."""

    engines: Mapping[str, Sequence[Check]]
    host: Sequence[Check]

    @property
    def working_engines(self) -> Sequence[str]:
        """Engines of which everything required is there."""
        return [
            name
            for name, checks in self.engines.items()
            if all(check.ok for check in checks if check.required)
        ]


def examine_machine() -> Examination:
    """Ask every engine and look at the machine."""
    host = this_machine(search_path=search_path(), data_dir=data_directory())
    return Examination(anyio.run(_ask_engines), examine(host))


async def _ask_engines() -> Mapping[str, Sequence[Check]]:
    return {name: await _ask_engine(name) for name in catalog.engine_names()}


async def _ask_engine(name: str) -> Sequence[Check]:
    try:
        engine = make_local_engine(name)
        try:
            checks = list(await engine.check())
            if Feature.PORTS in engine.features and all(
                check.ok for check in checks if check.required
            ):
                checks.append(await check_way_out(engine))
            return checks
        finally:
            await engine.close()
    except AtollError as error:
        # One engine that cannot even be asked must not hide the others.
        return [Check("start", False, error.message, "see the checks of the machine below")]


def print_examination(examination: Examination, *, as_json: bool) -> None:
    """Print one line per check, or one JSON object."""
    if as_json:
        print(json.dumps(_as_json(examination)))
        sys.stdout.flush()
        return
    for name, checks in examination.engines.items():
        _print_section(f"engine {name}", checks)
    _print_section("this machine", examination.host)
    working = ", ".join(examination.working_engines)
    print(
        f"\nengines that work: {working}" if working else "\nno engine works; fix what says 'fail'"
    )
    sys.stdout.flush()


def _as_json(examination: Examination) -> dict[str, object]:
    return {
        "ok": bool(examination.working_engines),
        "working_engines": list(examination.working_engines),
        "engines": {
            name: [asdict(check) for check in checks]
            for name, checks in examination.engines.items()
        },
        "host": [asdict(check) for check in examination.host],
    }


def _print_section(title: str, checks: Sequence[Check]) -> None:
    print(title)
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        kind = "ok" if check.ok else "fail" if check.required else "warn"
        fix = f"  →  {printable(check.fix)}" if check.fix and not check.ok else ""
        mark = colour(f"{kind:4}", kind, sys.stdout)
        print(f"  {mark}  {check.name:{width}}  {printable(check.found)}{fix}")
