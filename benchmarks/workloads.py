"""Ordinary work to do inside a sandbox and outside of one: imports, a compiler, pytest, git."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.interpreter import real_python


@dataclass(frozen=True, slots=True)
class Workload:
    """A command, and how to prepare the folder that it runs in, time and again."""

    argv: Sequence[str]
    prepare: Callable[[Path], None]


# The same inside and outside, but for HOME and TMPDIR, which name the same folder on either side.
ENVIRONMENT: Mapping[str, str] = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "GIT_AUTHOR_NAME": "Bench",
    "GIT_AUTHOR_EMAIL": "bench@example.org",
    "GIT_COMMITTER_NAME": "Bench",
    "GIT_COMMITTER_EMAIL": "bench@example.org",
    # What the machine's owner has set up, such as hooks, is not there in a sandbox.
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    # Waiting for the disk would drown what the walls cost.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "core.fsync",
    "GIT_CONFIG_VALUE_0": "none",
}

_MODULES = """
argparse ast asyncio base64 bz2 calendar cmd code codecs collections concurrent.futures configparser
contextlib copy csv ctypes dataclasses datetime decimal difflib dis doctest email.message email.parser
enum fractions ftplib functools getpass gettext glob gzip hashlib heapq hmac html.parser http.client
http.cookiejar http.server imaplib importlib.metadata inspect ipaddress json locale logging.config lzma
mailbox mimetypes multiprocessing.pool numbers operator optparse pathlib pdb pickle pkgutil platform plistlib
poplib pprint profile pstats pydoc queue random re sched secrets selectors shelve shlex shutil smtplib
socketserver sqlite3 ssl statistics string struct subprocess tarfile telnetlib tempfile textwrap threading
timeit tokenize tomllib trace traceback tracemalloc typing unicodedata unittest.mock urllib.request uuid
warnings wave weakref webbrowser wsgiref.simple_server xml.dom.minidom xml.etree.ElementTree xml.sax
xmlrpc.client xmlrpc.server zipapp zipfile zoneinfo
"""

_IMPORTS = f"""
import importlib, warnings
warnings.simplefilter("ignore")
for name in {_MODULES.split()!r}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        pass  # not in every version
"""

_PYTEST = """
import sys
sys.path.insert(0, "packages")
import pytest
sys.exit(pytest.main(["-q", "test_work.py"]))
"""

_TESTS = """
import json, subprocess, threading
import pytest

rounds = pytest.mark.parametrize("number", range(25))


@rounds
def test_files(tmp_path, number):
    for index in range(20):
        path = tmp_path / f"{index}.json"
        path.write_text(json.dumps({"number": number, "index": list(range(200))}))
        assert json.loads(path.read_text())["number"] == number


@rounds
def test_threads(number):
    done = []
    workers = [threading.Thread(target=done.append, args=(index,)) for index in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(done) == list(range(8))


@rounds
def test_numbers(number):
    assert sum(value * value for value in range(20000)) == 2666466670000


@rounds
def test_programs(number):
    assert subprocess.run(["true"]).returncode == 0
"""

_GIT = """
set -e
rm -rf repository
git init --quiet repository
cd repository
number=0
while [ $number -lt 100 ]; do
    echo "line $number" >file-$number.txt
    number=$((number + 1))
done
git add .
git commit --quiet --message first
for round in 1 2 3 4 5; do
    for file in file-1*.txt; do echo "round $round" >>$file; done
    git commit --quiet --all --message "round $round"
done
git checkout --quiet -b branch HEAD~3
echo more >file-2.txt
git commit --quiet --all --message branch
git checkout --quiet -
git merge --quiet --no-edit branch
git status --short
git log --stat >log.txt
git diff HEAD~5 >diff.txt
"""


def workloads(packages: Path) -> Mapping[str, Workload]:
    """Return the work by name; `packages` is a folder that holds pytest."""
    python = str(real_python())
    return {
        "import": Workload([python, "-I", "work.py"], _writes("work.py", _IMPORTS)),
        "compile": Workload(
            ["/usr/bin/gcc", "-O2", "-c", "-o", "work.o", "work.c"], _writes("work.c", _c_source())
        ),
        "pytest": Workload([python, "-I", "-c", _PYTEST], _copies(packages)),
        "git": Workload(["/bin/sh", "work.sh"], _writes("work.sh", _GIT)),
    }


def _writes(name: str, text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_text(text)

    return write


def _copies(packages: Path) -> Callable[[Path], None]:
    """Return what puts pytest and tests into a folder, which neither side shares with the other."""

    def copy(folder: Path) -> None:
        shutil.copytree(packages, folder / "packages")
        (folder / "test_work.py").write_text(_TESTS)

    return copy


def _c_source(functions: int = 60) -> str:
    """Return a program that keeps a compiler busy for a fraction of a second."""
    lines = ["#include <stdio.h>", "#include <stdlib.h>", "#include <string.h>"]
    for number in range(functions):
        lines += [
            f"int work_{number}(const char *text, int *table, int size) {{",
            "    int sum = 0;",
            "    for (int i = 0; i < size; i++) {",
            f"        table[i] = (table[i] * {number + 3}) ^ (int)strlen(text);",
            f"        if (table[i] % {number + 2} == 0) sum += table[i]; else sum -= i;",
            "    }",
            '    return sum + printf("%d\\n", sum) + atoi(text);',
            "}",
        ]
    return "\n".join(lines) + "\n"
