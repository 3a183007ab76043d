"""A container says whose it is, and who is gone is told from who may be alive."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

from atoll.engines.containers import labels
from atoll.engines.containers.labels import Program, labels_of, node_id, this_program
from atoll.model.container import ContainerOptions
from atoll.model.sandbox import SandboxSpec


def test_this_program_is_not_gone() -> None:
    here = this_program()
    assert Program.parse(str(here)) == here
    assert not here.is_surely_gone(here)


def test_a_program_that_ended_is_gone() -> None:
    here = this_program()
    with subprocess.Popen(["sleep", "1000"]) as child:
        other = replace(here, pid=child.pid, started=labels._started(child.pid))
        assert not other.is_surely_gone(here)
        child.kill()
    assert other.is_surely_gone(here)


def test_a_number_that_was_given_again_is_another_program() -> None:
    here = this_program()
    assert replace(here, started="1").is_surely_gone(here)


def test_before_the_machine_was_started_everybody_is_gone() -> None:
    here = this_program()
    assert replace(here, boot="earlier").is_surely_gone(here)


def test_who_cannot_be_seen_from_here_may_be_alive() -> None:
    here = this_program()
    assert not replace(here, pid_namespace="1", pid=999_999_999).is_surely_gone(here)


def test_what_is_no_program_is_none() -> None:
    assert [Program.parse(text) for text in ("", "a/b", "a/b/c/d", "a/b/-1/d")] == [None] * 4


def test_a_node_keeps_its_id(tmp_path: Path) -> None:
    first = node_id(tmp_path / "data")
    assert first == node_id(tmp_path / "data") != node_id(tmp_path / "other")
    assert os.listdir(tmp_path / "data") == ["containers-node"]


def test_the_spec_can_be_read_back() -> None:
    spec = SandboxSpec(env={"A": "ü"}, container=ContainerOptions(image="debian", cap_add=["KILL"]))
    written = labels_of(spec, "node", this_program())
    assert SandboxSpec.from_json(json.loads(written[labels.SPEC])) == spec
    assert written[labels.SANDBOX] == spec.id
