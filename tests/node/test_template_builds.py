"""Templates with packages: built once in a sandbox, used from then on; and packages for one sandbox alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import anyio
import pytest

from atoll import Sandbox
from atoll.client.embedded import EmbeddedNode, share_node
from atoll.errors import (
    CommandFailed,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Unavailable,
)
from atoll.model.template import TemplateInfo
from atoll.node.template_builds import MOST_TEMPLATES

pytestmark = [pytest.mark.timeout(600), pytest.mark.any_user]

# Small, pure Python, and with a module of the same name.
PACKAGE = "iniconfig"
VERSION = "2.0.0"


@pytest.fixture(scope="module")
def node() -> EmbeddedNode:
    return share_node("namespaces")


@pytest.fixture(scope="module")
def built(node: EmbeddedNode) -> Iterator[TemplateInfo]:
    """A template with one package, and what the installer said meanwhile."""
    said: list[str] = []
    yield build(node, "tested", [f"{PACKAGE}=={VERSION}"], report=said.append)
    node.sandboxes.templates.remove("tested")
    assert any(PACKAGE in line for line in said)


def build(node: EmbeddedNode, *args: object, **options: object) -> TemplateInfo:
    builds = node.sandboxes.builds

    async def work() -> TemplateInfo:
        return await builds.build(*args, **options)  # type: ignore[arg-type]

    return node.portal.call(work)


def test_kernels_of_a_built_template_find_its_packages_loaded(built: TemplateInfo) -> None:
    assert built.distributions == [f"{PACKAGE}=={VERSION}"]
    assert built.preload == [PACKAGE]
    with Sandbox(template="tested") as sandbox:
        loaded = sandbox.run_code(f"import sys\n{PACKAGE!r} in sys.modules")
        assert loaded.text == "True"
        code = f"import {PACKAGE}\n{PACKAGE}.__file__, {PACKAGE}.IniConfig.__name__"
        path, name = eval(sandbox.run_code(code).check().text or "")
        assert (path, name) == (f"/opt/packages/{PACKAGE}/__init__.py", "IniConfig")
        # Commands find it, too, and nobody can change it.
        said = sandbox.commands.run(
            ["python3", "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)"]
        )
        assert said.stdout.decode().strip() == path
        assert not sandbox.commands.run(f"echo x >> {path}").ok


def test_sandboxes_with_the_same_packages_share_one_template(node: EmbeddedNode) -> None:
    names = set()
    for packages in ({PACKAGE: VERSION}, [f"{PACKAGE}=={VERSION}"]):
        with Sandbox(packages=packages) as sandbox:
            assert sandbox.run_code(f"import {PACKAGE}").ok
            names.add(sandbox.info().template)
    (name,) = names
    assert node.sandboxes.templates.find(name).packages == [f"{PACKAGE}=={VERSION}"]
    node.sandboxes.templates.remove(name)


def test_a_template_that_is_built_anew_is_used_at_once(node: EmbeddedNode) -> None:
    templates = node.sandboxes.templates
    for _ in range(2):  # the second time, the same files lie in the same place
        build(node, "anew", [f"{PACKAGE}=={VERSION}"])
        with Sandbox(template="anew") as sandbox:
            assert sandbox.run_code(f"import {PACKAGE}.exceptions").ok
            templates.remove("anew")
    for version in ("1.1.1", VERSION):
        build(node, "anew", [f"{PACKAGE}=={version}"])
        with Sandbox(template="anew") as sandbox:
            code = f"from importlib.metadata import version\nversion({PACKAGE!r})"
            assert sandbox.run_code(code).text == repr(version)
    templates.remove("anew")


def test_what_cannot_be_installed_is_told_in_the_installer_s_words(node: EmbeddedNode) -> None:
    with pytest.raises(CommandFailed, match="No matching distribution found for no-such-package"):
        Sandbox.create(packages=["no-such-package-of-this-name==1"])
    with pytest.raises(InvalidRequest, match="is no package"):
        Sandbox(packages=["--index-url=x"])
    with pytest.raises(InvalidRequest, match="go with template 'python' or 'node'"):
        Sandbox(template="base", packages=[PACKAGE])
    for name in ("python", "UP", "a b", "../x", ""):
        with pytest.raises(InvalidRequest, match="template name"):
            build(node, name, [PACKAGE])
    with pytest.raises(InvalidRequest, match="at least one"):
        build(node, "empty", [])
    with pytest.raises(CommandFailed, match="'no_such_module' cannot be loaded ahead"):
        build(node, "wrong", [PACKAGE], preload=["no_such_module"])
    assert not [each for each in node.sandboxes.templates.list() if each.name in ("empty", "wrong")]


def test_nobody_can_put_a_template_in_another_s_place(
    node: EmbeddedNode, built: TemplateInfo
) -> None:
    # By its name: that of the operator is everybody's, and what is in it gets into their sandboxes.
    with pytest.raises(Conflict, match="exists already"):
        build(node, "tested", [PACKAGE], owner="mallory")
    found = node.sandboxes.templates.find("tested")
    assert (found.owner, found.digest) == (built.owner, built.digest)
    # Nor at the last moment, when his own build has passed all that was looked at before.
    with node.sandboxes.templates.scratch() as folder:
        stolen = replace(found, owner="mallory")
        with pytest.raises(Conflict, match="exists already"):
            node.sandboxes.templates.publish(stolen, folder)
    assert node.sandboxes.templates.find("tested") == found
    # By the name that another's packages will have.
    with Sandbox(packages=[f"{PACKAGE}=={VERSION}"]) as sandbox:
        name = sandbox.info().template
    templates = node.sandboxes.templates
    with pytest.raises(InvalidRequest, match="given by Atoll itself"):
        build(node, name, [PACKAGE], owner="mallory")
    assert templates.find(name).owner == "local"
    templates.remove(name)


def test_nobody_waits_for_the_packages_of_others(node: EmbeddedNode) -> None:
    builds = node.sandboxes.builds
    held = builds._turn("mallory")

    async def while_another_builds() -> TemplateInfo:
        async with held:
            with anyio.fail_after(300):
                return await builds.build("quick", [f"{PACKAGE}=={VERSION}"], owner="carol")

    assert node.portal.call(while_another_builds).owner == "carol"
    node.sandboxes.templates.remove("quick")


def test_an_owner_has_so_many_and_no_more(node: EmbeddedNode) -> None:
    templates = node.sandboxes.templates
    names = [f"many-{number}" for number in range(MOST_TEMPLATES)]
    try:
        for name in names:
            with templates.scratch() as folder:
                info = TemplateInfo(name, "", "carol", [PACKAGE], [name], [], "cpython-0", 0.0)
                templates.publish(info, folder)
        with pytest.raises(LimitExceeded, match=r"50 templates.*atoll template rm"):
            build(node, "one-more", [PACKAGE], owner="carol")
    finally:
        for name in names:
            templates.remove(name)
    with pytest.raises(NotFound):
        templates.find("one-more")


def test_a_template_of_somebody_else_is_not_there(node: EmbeddedNode, built: TemplateInfo) -> None:
    templates = node.sandboxes.templates
    templates.check_owner("tested", "anybody")  # the operator's is everybody's
    info = build(node, "private", [f"{PACKAGE}=={VERSION}"], owner="alice")
    try:
        templates.check_owner("private", "alice")
        with pytest.raises(InvalidRequest, match="no template 'private'") as foreign:
            templates.check_owner("private", "bob")
        with pytest.raises(InvalidRequest) as missing:
            templates.check_owner("missing", "bob")
        # Nobody learns of another's by asking for one that is not there.
        assert "private" not in missing.value.message
        assert foreign.value.message.replace("private", "missing") == missing.value.message
        # Not even their files are shared: what one has put there, another would load.
        assert info.digest != built.digest
    finally:
        templates.remove("private")


def test_a_template_that_is_gone_or_made_for_another_python_says_so(node: EmbeddedNode) -> None:
    templates = node.sandboxes.templates
    with pytest.raises(InvalidRequest, match="no template 'nothing'"):
        Sandbox.create(template="nothing")
    with templates.scratch() as folder:
        info = TemplateInfo("old", "", "local", [PACKAGE], [PACKAGE], [], "cpython-38", 0.0)
        templates.publish(info, folder)
    try:
        with pytest.raises(Unavailable, match="another Python"):
            Sandbox.create(template="old")
    finally:
        templates.remove("old")
    with pytest.raises(NotFound, match="atoll template ls"):
        templates.find("old")


def test_packages_are_installed_into_a_running_sandbox() -> None:
    with Sandbox(network="registries") as sandbox:
        assert not sandbox.run_code(f"import {PACKAGE}").ok
        assert "Successfully installed" in sandbox.install(PACKAGE).stdout.decode()
        assert sandbox.run_code(f"import {PACKAGE}").ok
        with pytest.raises(CommandFailed, match=r"(?s)could not be installed.*no-such-package"):
            sandbox.install("no-such-package-of-this-name")
        with pytest.raises(InvalidRequest, match="is no package"):
            sandbox.install("-r requirements.txt")
    with Sandbox() as sandbox, pytest.raises(CommandFailed, match="network='registries'"):
        sandbox.install(PACKAGE, timeout=60)


def test_npm_packages_are_installed_into_the_workspace() -> None:
    with Sandbox(template="base", network="registries") as sandbox:
        sandbox.install("left-pad@1.3.0", language="js")
        printed = sandbox.commands.run(
            ["node", "-e", "console.log(require('left-pad')('x', 3))"], check=True
        )
        assert printed.stdout == b"  x\n"


def test_the_command_line_builds_shows_and_removes() -> None:
    def atoll(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "atoll", "template", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    made = atoll("build", "by-hand", f"{PACKAGE}=={VERSION}", "--json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["distributions"] == [f"{PACKAGE}=={VERSION}"]
    assert f"Successfully installed {PACKAGE}" in made.stderr
    assert "by-hand" in {each["name"] for each in json.loads(atoll("ls", "--json").stdout)}
    assert PACKAGE in atoll("inspect", "by-hand").stdout
    assert atoll("rm", "by-hand").stdout == "by-hand\n"
    missing = atoll("inspect", "by-hand")
    assert missing.returncode == 125
    assert "by-hand" in missing.stderr
    assert atoll("build", "only-a-name").returncode == 2
