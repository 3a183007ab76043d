"""Packages that are installed into the home directory while a kernel lives: found at once, and before those of the system."""

from __future__ import annotations

from atoll import Sandbox

FOLDER = "import os, sys\nfolder = os.path.expanduser('~/.local/lib/python%d.%d/site-packages' % sys.version_info[:2])\n"


def put(name: str, text: str) -> str:
    return f"{FOLDER}os.makedirs(folder, exist_ok=True)\nopen(f'{{folder}}/{name}.py', 'w').write({text!r})"


def test_a_module_that_comes_later_is_found() -> None:
    with Sandbox() as sandbox:
        error = sandbox.run_code("import latecomer").error
        assert error is not None and error.name == "ModuleNotFoundError"
        sandbox.run_code(put("latecomer", "here = True")).check()
        assert sandbox.run_code("import latecomer\nlatecomer.here").text == "True"


def test_what_was_installed_here_comes_before_what_everybody_has() -> None:
    """As in any other Python: somebody who installs a newer version means to use it."""
    with Sandbox() as sandbox:
        # Of the kernel's own packages, which stand behind those of the system; not loaded yet.
        loaded = sandbox.run_code("import sys\n'jedi' in sys.modules").text
        assert loaded == "False"
        sandbox.run_code(put("jedi", "mine = True")).check()
        assert sandbox.run_code("import jedi\njedi.mine").text == "True"
        # What is built in is found all the same, also by the first import after that.
        assert sandbox.run_code("import _csv, _elementtree, math\nmath.pi > 3").text == "True"
