"""The TypeScript SDK against a running server: the same tests, and the examples of its pages, on Node, Deno and Bun.

All of them run side by side, each as a user of its own, and wait more than they compute.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.cli.conftest import why_not
from tests.running_server import RunningServer, running_server
from tools import typescript
from tools.typescript import SDK

pytestmark = [pytest.mark.any_user, pytest.mark.timeout(600)]

_BLOCK = re.compile(r"^```ts\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PAGES = (SDK / "README.md", SDK.parent.parent / "docs/typescript.md")
_SECONDS = 500


@dataclass(frozen=True)
class Platform:
    """Something that runs JavaScript: how it runs a program, and files of tests."""

    program: tuple[str, ...]
    tests: tuple[str, ...]
    chosen: tuple[str, ...] = ("*",)  # files of tests, by their names


_BIN = str(SDK / "node_modules/.bin")
_NODE_TESTS = ("--test", "--test-concurrency=4", "--test-timeout=100000")
PLATFORMS = {
    "node": Platform(("node",), ("node", *_NODE_TESTS)),
    "deno": Platform(
        (f"{_BIN}/deno", "run", "--allow-all", "--node-modules-dir=manual"),
        (f"{_BIN}/deno", "test", "--allow-all", "--parallel"),
    ),
    "bun": Platform((f"{_BIN}/bun", "run"), (f"{_BIN}/bun", "test", "--timeout=100000")),
    # What the other ones have of their own, Node 20 has only if it is told to.
    "node with WebSockets": Platform(
        ("node", "--experimental-websocket"),
        ("node", "--experimental-websocket", *_NODE_TESTS),
        chosen=("cells", "docker", "terminals"),
    ),
}


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    try:
        typescript.install()
    except typescript.NoNode as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")
    # So that whoever may have no cgroups can name limits, too.
    with running_server(ATOLL_LIMITS__ENFORCEMENT="best_effort") as server:
        yield server


@pytest.fixture(scope="module")
def built(packages: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SDK and its tests as JavaScript."""
    folder = tmp_path_factory.mktemp("built")
    typescript.run("tsc", "--outDir", str(folder), "--rootDir", str(SDK))
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


@pytest.fixture(scope="module")
def examples(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that uses the built package by its name: all examples of the pages, one after another."""
    folder = tmp_path_factory.mktemp("examples")
    package = folder / "node_modules/@atoll/sandbox"
    shutil.copytree(built / "src", package / "dist")
    shutil.copy(SDK / "package.json", package)
    (folder / "package.json").write_text('{"type": "module"}')
    blocks = [block for page in _PAGES for block in _BLOCK.findall(page.read_text())]
    for number, block in enumerate(blocks):
        (folder / f"example{number}.ts").write_text(block)
    imports = (f'await import("./example{number}.js");' for number in range(len(blocks)))
    (folder / "all.js").write_text("\n".join((*imports, 'console.log("all ran");')))
    settings = {
        "extends": str(SDK / "tsconfig.json"),
        "compilerOptions": {"typeRoots": [str(SDK / "node_modules/@types")], "rootDir": "."},
        "include": ["*.ts"],
    }
    (folder / "tsconfig.json").write_text(json.dumps(settings))
    typescript.run("tsc", "-p", str(folder))
    return folder


@pytest.fixture(scope="module")
def runs(
    server: RunningServer, built: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, tuple[subprocess.Popen[str], Path]]]:
    """The tests, running on every platform, and what they print."""
    with ExitStack() as ending:
        found = {}
        for name, platform in PLATFORMS.items():
            place = tmp_path_factory.mktemp("home")
            output = ending.enter_context((place / "output").open("w"))
            files = sorted(f"./{each.relative_to(built)}" for each in _test_files(built, platform))
            process = subprocess.Popen(
                [*platform.tests, *files],
                cwd=built,
                env=_environment(server, name, place),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
            ending.callback(process.wait)
            ending.callback(process.kill)
            found[name] = (process, place / "output")
        yield found


def _test_files(built: Path, platform: Platform) -> Iterator[Path]:
    for name in platform.chosen:
        yield from (built / "test").glob(f"{name}.test.js")


def _environment(server: RunningServer, user: str, place: Path) -> dict[str, str]:
    return {
        **{name: server.environment[name] for name in ("PATH",)},
        "HOME": str(place),
        "DENO_DIR": str(place / "deno"),
        "DENO_NO_UPDATE_CHECK": "1",
        "NO_COLOR": "1",
        "ATOLL_URL": server.url,
        "ATOLL_TOKEN": _new_token(server, user),
    }


def _new_token(server: RunningServer, user: str) -> str:
    async def make() -> str:
        async with server.client() as client:
            call = partial(_call, client, name=user.replace(" ", "-").lower())
            made = await call("/users", role="member")
            token: str = (await call("/tokens", user=made["id"], scope="member"))["token"]
            return token

    return anyio.run(make)


async def _call(client: Any, path: str, **body: Any) -> Any:
    return await client.call("POST", path, body=body)


@pytest.mark.parametrize("name", PLATFORMS)
def test_the_tests_pass(name: str, runs: Mapping[str, tuple[subprocess.Popen[str], Path]]) -> None:
    process, output = runs[name]
    code = process.wait(_SECONDS)
    assert code == 0, output.read_text()[-20_000:]


@pytest.mark.parametrize("name", ("node", "deno", "bun"))
def test_the_examples_of_the_pages_run(
    name: str, server: RunningServer, examples: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [*PLATFORMS[name].program, "all.js"],
        cwd=examples,
        env=_environment(server, f"{name}-examples", tmp_path),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert "1.4142135623730951" in done.stdout
    assert "TimeoutError" in done.stdout
    assert done.stdout.endswith("all ran\n")


def test_the_package_needs_nothing_else() -> None:
    facts = json.loads((SDK / "package.json").read_text())
    assert not {"dependencies", "peerDependencies", "optionalDependencies"} & set(facts)
    imports = {
        name
        for path in (SDK / "src").rglob("*.ts")
        for name in re.findall(r"""(?:from|import\()\s*["']([^"']+)["']""", path.read_text())
        if not name.startswith(".")
    }
    assert imports <= {"node:net"}, imports


def test_the_lock_names_no_address() -> None:
    lock = json.loads((SDK / "package-lock.json").read_text())
    packages = {name: facts for name, facts in lock["packages"].items() if name}
    assert packages
    for name, facts in packages.items():
        assert "resolved" not in facts, name
        assert facts["integrity"].startswith("sha512-"), name
