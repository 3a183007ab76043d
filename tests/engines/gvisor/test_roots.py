"""Roots of sandboxes under gVisor."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from atoll.engines.gvisor.roots import (
    Template,
    build_root,
    find_template,
    make_tree,
)
from atoll.engines.roots import Entry, Op, check_template
from atoll.errors import InvalidRequest, Unsupported
from atoll.model.sandbox import SandboxSpec
from atoll.model.template import BASE_TEMPLATE, PYTHON_TEMPLATE, TemplateTree

pytestmark = pytest.mark.any_user


@pytest.fixture
def steward(tmp_path: Path) -> Path:
    path = tmp_path / "steward"
    path.write_bytes(b"program")
    return path


def test_the_base_has_the_hosts_programs_and_nothing_else_of_it(
    steward: Path, tmp_path: Path
) -> None:
    template = find_template(BASE_TEMPLATE, {}, steward, None)
    root = tmp_path / "root"
    make_tree(template, root)
    sources = {bind.source for bind in template.binds(root)}
    assert "/usr" in sources
    assert not sources & {"/", "/etc", "/home", "/root", "/var", "/proc", "/sys", "/dev", "/run"}
    assert "sandbox:x:65532:65532" in (root / "etc/passwd").read_text()
    assert list((root / "dev").iterdir()) == []  # the second kernel has devices of its own
    assert (root / "opt/atoll/steward").read_bytes() == b"program"
    assert os.access(root / "opt/atoll/steward", os.X_OK)
    assert (root / "opt/atoll/guest/atoll_guest/kernel.py").is_file()


def test_everybody_may_enter_a_tree_whatever_the_umask(steward: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        root = build_root(find_template(BASE_TEMPLATE, {}, steward, None), tmp_path / "roots")
    finally:
        os.umask(before)
    for folder, _folders, files in os.walk(root):
        assert os.stat(folder).st_mode & 0o777 == 0o755
        for name in files:
            assert os.lstat(Path(folder, name)).st_mode & 0o444 == 0o444


def test_a_tree_is_made_once_and_again_only_if_anything_differs(
    steward: Path, tmp_path: Path
) -> None:
    template = find_template(BASE_TEMPLATE, {}, steward, None)
    digest = template.digest
    first = build_root(template, tmp_path / "roots")
    assert build_root(find_template(BASE_TEMPLATE, {}, steward, None), tmp_path / "roots") == first
    other = replace(template, entries=(*template.entries, Entry(Op.TEXT, "/etc/more", "text")))
    assert build_root(other, tmp_path / "roots") != first
    steward.write_bytes(b"a newer program")
    assert find_template(BASE_TEMPLATE, {}, steward, None).digest != digest


def test_a_mask_is_an_empty_directory_of_the_tree(tmp_path: Path) -> None:
    template = Template((Entry(Op.BIND, "/opt/a", "/a"), Entry(Op.MASK, "/opt/a/secret")))
    binds = template.binds(tmp_path)
    assert [(bind.source, bind.target) for bind in binds] == [
        ("/a", "/opt/a"),
        (f"{tmp_path}/.atoll/empty", "/opt/a/secret"),
    ]
    assert not any(bind.is_writable for bind in binds)


def test_a_template_with_packages_has_its_tree_bound(steward: Path, tmp_path: Path) -> None:
    tree = TemplateTree(PYTHON_TEMPLATE, "digest", tmp_path / "tree", ())
    template = find_template(PYTHON_TEMPLATE, {PYTHON_TEMPLATE: lambda: tree}, steward, None)
    assert (str(tree.path), "/opt/template") in {
        (b.source, b.target) for b in template.binds(tmp_path)
    }
    assert template.env["PYTHONPATH"] == "/opt/template"


def test_unknown_templates_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="no-such"):
        check_template(SandboxSpec(template="no-such"), {})
    with pytest.raises(Unsupported, match="no interpreter"):
        check_template(SandboxSpec(template=BASE_TEMPLATE, kernel=True), {})
