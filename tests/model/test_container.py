"""What may be said about a container, and that it survives being written down."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atoll.errors import InvalidRequest
from atoll.model.container import ContainerOptions, parse_user
from atoll.model.sandbox import SandboxSpec

pytestmark = pytest.mark.any_user


def test_it_can_be_written_down_and_read_back() -> None:
    options = ContainerOptions(
        image="registry.example/team/image:1@sha256:" + "0" * 64,
        pull="never",
        runtime="runsc",
        user="1000:2000",
        network="bridge",
        volume="team-a",
        labels={"a": "b"},
        cap_add=["cap_kill", "CHOWN"],
        seccomp="other",
        read_only_root=False,
        cpu_shares=2,
    )
    spec = SandboxSpec(container=options)
    assert options.cap_add == ("CHOWN", "KILL")
    assert SandboxSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_a_spec_of_an_older_node_has_none() -> None:
    fields = SandboxSpec().to_json()
    del fields["container"]
    assert SandboxSpec.from_json(fields).container is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"image": "-v /:/host"},
        {"image": ""},
        {"image": "a b"},
        {"pull": "sometimes"},
        {"runtime": "/bin/sh"},
        {"user": "root"},
        {"user": "0x0"},
        {"user": "1:2:3"},
        {"user": "4294967295"},
        {"network": "container:other"},
        {"network": None},
        {"volume": "/etc"},
        {"volume": "../etc"},
        {"seccomp": "/etc/passwd"},
        {"labels": {"atoll.node": "x"}},
        {"labels": {"a": 1}},
        {"labels": {"a\n": ""}},
        {"cap_add": "CHOWN"},
        {"cap_add": ["ALL"]},
        {"cap_add": ["a=b"]},
        {"read_only_root": "no"},
        {"cpu_shares": 1},
        {"cpu_shares": True},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        ContainerOptions(**wrong)


def test_a_user_alone_is_his_own_group() -> None:
    assert parse_user("1000") == (1000, 1000)
    assert parse_user("1000:5") == (1000, 5)


def test_who_makes_no_containers_refuses_to() -> None:
    SandboxSpec().refuse_container("fake")
    with pytest.raises(InvalidRequest, match="fake makes no containers"):
        SandboxSpec(container=ContainerOptions()).refuse_container("fake")
    with pytest.raises(InvalidRequest, match="ContainerOptions"):
        SandboxSpec(container={"image": "x"})  # type: ignore[arg-type]
