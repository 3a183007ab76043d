"""Modules that a template has loaded ahead, and those that only load in a sandbox."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll import Sandbox
from atoll.model.sandbox import LOCAL_OWNER
from atoll.model.template import TemplateInfo
from atoll.node.templates import INTERPRETER, Templates

_NAME = "half-loaded-test"
# As matplotlib does, which looks for a place that it can write to once most of it is loaded.
_PACKAGE = {
    "half/__init__.py": "import half.part\nopen('/tmp/place', 'w').close()\nassert half.part.VALUE == 7\n",
    "half/part.py": "VALUE = 7\n",
    "whole.py": "LOADED = __import__('os').getpid()\n",
}


@pytest.fixture
def template(data_dir: Path) -> Iterator[str]:
    """A template with a package that cannot be loaded ahead, though it was meant to be."""
    templates = Templates(data_dir)
    with templates.scratch() as folder:
        for name, text in _PACKAGE.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        preload = ("half", "whole")
        info = TemplateInfo(
            _NAME, "", LOCAL_OWNER, preload, ("half==1",), preload, INTERPRETER, time.time()
        )
        templates.publish(info, folder)
    yield _NAME
    templates.remove(_NAME)


def test_what_cannot_be_loaded_ahead_loads_as_a_whole_in_the_sandbox(template: str) -> None:
    with Sandbox(template=template) as sandbox:
        loaded = sandbox.run_code("import sys\n'whole' in sys.modules, 'half.part' in sys.modules")
        assert loaded.text == "(True, False)"
        cell = sandbox.run_code("import half\nhalf.part.VALUE")
        assert (cell.text, cell.error) == ("7", None)
