"""Kernels of one zygote are alike in everything but chance, and share what they do not write to."""

from __future__ import annotations

import os

import pytest

from atoll import Sandbox
from tests.campaigns import Campaign

CHANCE = {
    "random": "import random; random.random()",
    "urandom": "import os; os.urandom(16)",
    "secrets": "import secrets; secrets.token_hex()",
    "uuid1": "import uuid; str(uuid.uuid1())[9:]",
    "uuid4": "import uuid; str(uuid.uuid4())",
    "tempfile": "import tempfile; tempfile.mktemp()",
    "openssl": "import ssl; ssl.RAND_bytes(16)",
}
PRIVATE = "import re; int(re.search('Private_Dirty: *([0-9]+)', open('/proc/self/smaps_rollup').read())[1])"


def test_no_two_kernels_draw_the_same(campaign: Campaign) -> None:
    drawn: dict[str, list[str | None]] = {name: [] for name in CHANCE}
    for _ in range(campaign.count(1000) // 4 + 2):
        with Sandbox() as sandbox:
            for name, code in CHANCE.items():
                drawn[name].append(sandbox.run_code(code).check().text)
    assert {name for name, values in drawn.items() if len(set(values)) < len(values)} == set()


def test_a_kernel_writes_to_little_of_what_it_shares() -> None:
    with Sandbox() as sandbox:
        sandbox.run_code("print(1)").check()
        assert int(sandbox.run_code(PRIVATE).text or 0) < 2500
        sandbox.run_code("import gc; gc.collect()").check()
        assert int(sandbox.run_code(PRIVATE).text or 0) < 4000


def test_copies_that_a_cell_makes_of_its_kernel_are_told_that_threads_are_gone() -> None:
    code = """
import os, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
pid = os.fork()
if pid == 0:
    os._exit(threading.active_count())
threading.active_count(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
    with Sandbox() as sandbox:
        assert sandbox.run_code(code).check().text == "(2, 1)"


def test_nothing_of_the_hosts_environment_reaches_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    canary = os.urandom(12).hex()
    monkeypatch.setenv("CANARY", canary)
    with Sandbox() as sandbox:
        for code in ("dict(__import__('os').environ)", "open('/proc/self/environ').read()"):
            assert canary not in (sandbox.run_code(code).check().text or "")


def test_the_standard_streams_know_what_they_are() -> None:
    with Sandbox() as sandbox:
        code = "import sys; [(s.name, s.seekable(), s.isatty(), s.encoding) for s in (sys.stdin, sys.stdout)]"
        text = sandbox.run_code(code).check().text
    assert text == "[('<stdin>', False, False, 'utf-8'), ('<stdout>', False, False, 'utf-8')]"
