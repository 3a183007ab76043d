"""Installs packages into a tree of their own, inside the sandbox of a build: Python's by pip, Node's by npm.

Whatever installers and packages run, they run there; the node looks at what is told, and copies files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import anyio.to_thread

from atoll.errors import CommandFailed, InvalidRequest
from atoll.model.language import PYTHON
from atoll.model.process import CommandResult, Output
from atoll.model.template import NODE_TEMPLATE, PYTHON_TEMPLATE
from atoll.node.hosted import HostedSandbox
from atoll.node.templates import INNER_PATH, PACKAGES_PATH, Templates

Report = Callable[[str], None]

# Where they are installed, in the workspace; sandboxes find them at PACKAGES_PATH.
PACKAGES_FOLDER = "packages"
INSTALL_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Found:
    """What there is of packages once they are installed."""

    language: str
    distributions: Sequence[str]
    preload: Sequence[str] = ()  # modules that kernels can be given loaded


class Packages(Protocol):
    """How the packages of one language get into a tree."""

    @property
    def template(self) -> str:
        """What the sandbox is made from that they are installed in."""
        ...

    async def install(self, hosted: HostedSandbox, wanted: Sequence[str], report: Report) -> None:
        """Install them; raise `CommandFailed` with the installer's words if that fails."""
        ...

    async def look(
        self, hosted: HostedSandbox, wanted: Sequence[str], preload: Sequence[str] | None
    ) -> Found:
        """Return what was installed; raise an error for a `preload` that cannot be."""
        ...


def make_packages(language: str, templates: Templates) -> Packages:
    """Return how packages of a language, one that templates are built for, get into a tree."""
    return PythonPackages(templates) if language == PYTHON.name else NodePackages()


# --- Python --------------------------------------------------------------------------------------------------

_MOST_PRELOAD = 50
_INSTALL = (
    "python3 -m pip install --no-input --disable-pip-version-check --no-compile --progress-bar off"
    " --root-user-action ignore --target packages -c constraints -r requirements"
)
_COMPILE = (
    f"python3 -m compileall -q -d {PACKAGES_PATH} --invalidation-mode unchecked-hash packages"
)
_FONTS = (
    "[ ! -d packages/matplotlib ] || MPLCONFIGDIR=/workspace/packages/.matplotlib"
    " python3 -c 'import matplotlib.font_manager'"
)
# Prints what was installed, and the modules of what was asked for.
_LOOK = """
import importlib.metadata, json, re, sys
wanted = {re.sub("[-_.]+", "-", name).lower() for name in json.loads(sys.argv[1])}
found, modules = [], []
for each in importlib.metadata.distributions(path=["packages"]):
    found.append(each.name + "==" + each.version)
    if re.sub("[-_.]+", "-", each.name).lower() in wanted:
        tops = {file.parts[0] for file in each.files or () if file.parts[1:] == ("__init__.py",)}
        tops |= {file.stem for file in each.files or () if len(file.parts) == 1 and file.suffix == ".py"}
        modules += sorted(top for top in tops if top.isidentifier() and not top.startswith(("_", "test")))
print(json.dumps({"distributions": sorted(found, key=str.lower), "modules": modules}))
"""
# Loads one module after the other in copies of one process; prints those that load and start no thread.
_TRY = """
import importlib, json, os, sys
good = []
for name in json.loads(sys.argv[1]):
    pid = os.fork()
    if pid == 0:
        importlib.import_module(name)
        os._exit(len(os.listdir("/proc/self/task")) != 1)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
        importlib.import_module(name)
        good.append(name)
sys.stdout = sys.__stdout__
print("\\n" + json.dumps(good))
"""
# What people use of a package beyond the module of its name.
_ALSO_LOADED: Mapping[str, Sequence[str]] = {
    "matplotlib": ("matplotlib.pyplot", "matplotlib.backends.backend_agg")
}
_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class PythonPackages:
    """Packages of pip's, compiled, and tried whether they can be loaded before a fork."""

    template = PYTHON_TEMPLATE

    def __init__(self, templates: Templates) -> None:
        self._templates = templates

    async def install(self, hosted: HostedSandbox, wanted: Sequence[str], report: Report) -> None:
        """Install and compile them."""
        usual = await anyio.to_thread.run_sync(self._templates.python)
        # What kernels need is there in one version, which others have to agree with.
        await hosted.files.write("constraints", "\n".join(usual.distributions) + "\n")
        await hosted.files.write("requirements", "\n".join(wanted) + "\n")
        await _run(hosted, _INSTALL, report)
        report("compiling")
        # A file for another version of Python does not compile, and nobody loads it.
        await hosted.commands.run(_COMPILE, timeout=INSTALL_SECONDS)
        # Looking at all fonts takes seconds; a zygote, which can write nowhere, finds here what came of it.
        env = {"PYTHONPATH": PACKAGES_FOLDER}
        await hosted.commands.run(_FONTS, env=env, timeout=INSTALL_SECONDS)

    async def look(
        self, hosted: HostedSandbox, wanted: Sequence[str], preload: Sequence[str] | None
    ) -> Found:
        """Return what was installed, and which of its modules a zygote can load."""
        found = await _ask(hosted, _LOOK, [_bare_name(each) for each in wanted])
        modules = await _find_preload(hosted, found["modules"], preload)
        return Found(PYTHON.name, found["distributions"], modules)


async def _find_preload(
    hosted: HostedSandbox, modules: Sequence[str], asked: Sequence[str] | None
) -> Sequence[str]:
    """Return the modules that a zygote can load; raise `CommandFailed` if one that was asked for is not among them."""
    if asked is None:
        also = [each for name in modules for each in _ALSO_LOADED.get(name, ())]
        modules = [*modules, *also]
    else:
        modules = list(asked)
    good = await _ask(hosted, _TRY, modules[:_MOST_PRELOAD])
    missing = [name for name in asked or () if name not in good]
    if missing:
        raise CommandFailed(
            f"module {missing[0]!r} cannot be loaded ahead: it fails, or starts threads; leave it out of preload"
        )
    return [str(name) for name in good]


async def _ask(hosted: HostedSandbox, program: str, question: Sequence[str]) -> Any:
    """Run a program inside that prints JSON in its last line."""
    command = ["python3", "-c", program, json.dumps(list(question))]
    env = {"PYTHONPATH": f"{INNER_PATH}:/workspace/packages", **_THREADS}
    result = await hosted.commands.run(command, env=env, timeout=INSTALL_SECONDS, check=True)
    return json.loads(result.stdout.decode().strip().splitlines()[-1])


def _bare_name(requirement: str) -> str:
    for index, character in enumerate(requirement):
        if character in "[<>=!~":
            return requirement[:index]
    return requirement


# --- Node ----------------------------------------------------------------------------------------------------

_NPM = (
    "npm", "install", "--prefix", PACKAGES_FOLDER, "--no-fund", "--no-audit", "--no-progress", "--no-update-notifier",
    "--logs-max=0", "--",
)  # fmt: skip
# Prints what was installed. Programs of packages are links, which no tree of files from a sandbox has: small scripts stand for them.
_LOOK_AT_NODE = f"""
const fs = require("fs"), path = require("path");
const modules = "packages/node_modules", programs = modules + "/.bin";
for (const name of fs.existsSync(programs) ? fs.readdirSync(programs) : []) {{
  const link = path.join(programs, name);
  const program = path.relative("packages", fs.realpathSync(link));
  const quoted = `{PACKAGES_PATH}/${{program}}`.replaceAll("'", `'\\''`);
  fs.unlinkSync(link);
  fs.writeFileSync(link, `#!/bin/sh\nexec '${{quoted}}' "$@"\n`, {{ mode: 0o755 }});
}}
const {{ packages }} = JSON.parse(fs.readFileSync(modules + "/.package-lock.json"));
const found = Object.entries(packages).map(([place, facts]) =>
  (facts.name ?? place.split("node_modules/").pop()) + "@" + facts.version);
console.log(JSON.stringify([...new Set(found)].sort()));
"""


class NodePackages:
    """Packages of npm's."""

    template = NODE_TEMPLATE

    async def install(self, hosted: HostedSandbox, wanted: Sequence[str], report: Report) -> None:
        """Install them; what their scripts do on being installed, they do there."""
        await hosted.files.write(f"{PACKAGES_FOLDER}/package.json", "{}\n")
        await _run(hosted, (*_NPM, *wanted), report)

    async def look(
        self, hosted: HostedSandbox, wanted: Sequence[str], preload: Sequence[str] | None
    ) -> Found:
        """Return what was installed; a Node cannot be forked, and so finds nothing loaded."""
        if preload:
            raise InvalidRequest("preload is for packages of Python: a Node loads its own, always")
        command = ["node", "-e", _LOOK_AT_NODE]
        result = await hosted.commands.run(command, timeout=INSTALL_SECONDS, check=True)
        return Found("node", json.loads(result.stdout))


# --- both ----------------------------------------------------------------------------------------------------

_LAST_LINES = 12


async def _run(hosted: HostedSandbox, command: Sequence[str] | str, report: Report) -> None:
    """Run the installer to its end; raise `CommandFailed` with its words if it fails."""
    said: list[str] = []
    rest = ""
    async for event in hosted.commands.stream(command, timeout=INSTALL_SECONDS):
        if isinstance(event, Output):
            *lines, rest = (rest + event.data.decode("utf-8", "replace")).split("\n")
            said = [*said, *lines][-_LAST_LINES:]
            for each in lines:
                report(each)
        elif isinstance(event, CommandResult) and not event.ok:
            words = "\n".join([*said, rest]).strip() or event.reason.value
            raise CommandFailed(f"the packages could not be installed:\n{words}")
