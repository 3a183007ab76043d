"""Packages of npm's for sandboxes of Node: installed once, in a sandbox of their own, then there from the start."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from atoll import Sandbox, Templates
from atoll.client.embedded import EmbeddedNode, share_node
from atoll.errors import CommandFailed, InvalidRequest, NotFound
from tests.cli.conftest import why_not

pytestmark = [pytest.mark.timeout(600), pytest.mark.any_user]

# Without dependencies, of CommonJS; as ESM alone, with a scope; with a program and a script that runs when it is installed.
PACKAGES = {"left-pad": "1.3.0", "@sindresorhus/is": "7.0.1", "esbuild": "0.25.0"}


@pytest.fixture(scope="module")
def node() -> EmbeddedNode:
    return share_node("namespaces")


@pytest.fixture(scope="module", params=["namespaces", "gvisor"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """One with packages, on engines that have the machine's Node."""
    if reason := why_not(request.param):
        pytest.skip(f"engine {request.param} does not work here: {reason}")
    with Sandbox(
        template="node", packages=PACKAGES, engine=request.param, network="registries"
    ) as sandbox:
        yield sandbox


def say(sandbox: Sandbox, line: str) -> str:
    return sandbox.commands.run(line, check=True).stdout.decode().strip()


def test_cells_and_programs_find_them_by_require_and_import(sandbox: Sandbox) -> None:
    # Cells are of Node without being told so, as with template `node`.
    assert sandbox.run_code("require('left-pad')('x', 3)").text == "'  x'"
    cell = sandbox.run_code("import is from '@sindresorhus/is'; is(5)")
    assert cell.text == "'number'", cell.error
    sandbox.files.write("deep/main.mjs", "import is from '@sindresorhus/is'; console.log(is(null))")
    assert say(sandbox, "node deep/main.mjs") == "null"
    assert say(sandbox, "node -p 'require.resolve(\"left-pad\")'") == (
        "/opt/packages/node_modules/left-pad/index.js"
    )


def test_their_programs_are_on_the_path(sandbox: Sandbox) -> None:
    # What esbuild does on being installed was done, in the sandbox of the build.
    assert say(sandbox, "echo 'let x: number = 1' | esbuild --loader=ts") == "let x = 1;"


def test_nobody_can_change_them_and_the_workspace_has_none_of_it(sandbox: Sandbox) -> None:
    assert not sandbox.commands.run("echo x >> /node_modules/left-pad/index.js").ok
    assert not sandbox.commands.run("mkdir /node_modules/more").ok
    assert "node_modules" not in say(sandbox, "ls -a")


def test_others_are_installed_beside_them_and_come_first(sandbox: Sandbox) -> None:
    try:
        sandbox.install("left-pad@1.2.0", "is-odd@3.0.1", language="node")
        # In the workspace, though no project is there, as in a sandbox without packages.
        say(sandbox, "test -f node_modules/is-odd/package.json")
        version = "node -p 'require(\"left-pad/package.json\").version'"
        assert say(sandbox, version) == "1.2.0"
        assert say(sandbox, f"cd /tmp && {version}") == PACKAGES["left-pad"]
        # So it is in any empty directory; one below a project belongs to that.
        assert say(sandbox, "mkdir -p /tmp/empty && cd /tmp/empty && npm prefix") == "/tmp/empty"
        assert say(sandbox, "mkdir -p below && cd below && npm prefix") == "/workspace"
        assert say(sandbox, "cd /tmp/empty && npm prefix -g") == say(
            sandbox, "/usr/bin/npm prefix -g"
        )
    finally:
        sandbox.commands.run("rm -rf node_modules package.json package-lock.json below /tmp/empty")


def test_sandboxes_with_the_same_packages_share_one_template(node: EmbeddedNode) -> None:
    names = set()
    for packages in ({"left-pad": "1.3.0"}, ["left-pad@1.3.0"]):
        with Sandbox(template="node", packages=packages) as sandbox:
            assert sandbox.run_code("require('left-pad')('x', 2)").text == "' x'"
            names.add(sandbox.info().template)
    (name,) = names
    info = node.sandboxes.templates.find(name)
    assert (info.packages, info.distributions) == (["left-pad@1.3.0"], ["left-pad@1.3.0"])
    node.sandboxes.templates.remove(name)


def test_the_second_sandbox_starts_about_as_fast_as_a_bare_one() -> None:
    def seconds(**options: object) -> float:
        taken = []
        for _ in range(5):
            begun = time.perf_counter()
            with Sandbox(template="node", **options) as sandbox:  # type: ignore[arg-type]
                assert sandbox.run_code("1 + 1").text == "2"
                taken.append(time.perf_counter() - begun)
        return min(taken)

    with Sandbox(template="node", packages=PACKAGES):
        pass
    # An installation takes seconds.
    assert seconds(packages=PACKAGES) < seconds() + 0.25


def test_what_is_the_newest_is_looked_up_again_after_a_day(node: EmbeddedNode) -> None:
    builds, templates = node.sandboxes.builds, node.sandboxes.templates
    with Sandbox(template="node", packages={"left-pad": ""}) as sandbox:
        name = sandbox.info().template
    assert builds.find(("left-pad",), "node", "local") == name
    info = templates.find(name)
    templates.note(replace(info, made_at=time.time() - 25 * 3600))
    assert builds.find(("left-pad",), "node", "local") is None
    # Made for another Node, it has to be made again as well.
    templates.note(replace(info, interpreter="node-1"))
    assert builds.find(("left-pad",), "node", "local") is None
    with pytest.raises(NotFound):
        templates.remove(name, "bob")
    templates.remove(name)


def test_what_cannot_be_installed_is_told_in_npm_s_words() -> None:
    with pytest.raises(CommandFailed, match=r"(?s)could not be installed.*left-pad@99\.0\.0"):
        Sandbox.create(template="node", packages={"left-pad": "99.0.0"})
    for wrong in ("--registry=x", "a; id", "../x", "git+ssh://a/b", "x@file:/etc"):
        with pytest.raises(InvalidRequest, match="is no package"):
            Sandbox(template="node", packages=[wrong])


def test_other_templates_say_where_packages_come_from() -> None:
    with pytest.raises(InvalidRequest, match=r"r-cran-jsonlite.*language='r'"):
        Sandbox(template="r", packages=["jsonlite"])
    with pytest.raises(InvalidRequest, match="go with template 'python' or 'node', not 'deno'"):
        Sandbox(template="deno", packages=["left-pad"])
    with pytest.raises(InvalidRequest, match="built of packages of python or node, not of 'r'"):
        Templates().build("mine", ["jsonlite"], language="r")


def test_a_template_is_built_by_name() -> None:
    templates = Templates()
    info = templates.build("of-node", ["left-pad@1.3.0"], language="node")
    try:
        assert (info.language, *info.preload) == ("node",)
        with Sandbox(template="of-node") as sandbox:
            assert sandbox.run_code("require('left-pad')('x', 2)").text == "' x'"
    finally:
        templates.remove("of-node")
    with pytest.raises(InvalidRequest, match="preload is for packages of Python"):
        templates.build("of-node", ["left-pad@1.3.0"], language="node", preload=["left-pad"])


def test_the_command_line_builds_one() -> None:
    def atoll(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "atoll", "template", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    made = atoll("build", "by-npm", "left-pad@1.3.0", "--language", "node", "--json")
    try:
        assert made.returncode == 0, made.stderr
        told = json.loads(made.stdout)
        assert (told["language"], told["distributions"]) == ("node", ["left-pad@1.3.0"])
    finally:
        atoll("rm", "by-npm")
    assert atoll("build", "x", "y", "--language", "node", "--preload", "y").returncode == 2
    assert atoll("build", "x", "--image", "y", "--language", "node").returncode == 2
