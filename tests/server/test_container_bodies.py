"""What a request says about a container, and what an image is to which engine."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from pydantic import ValidationError

from atoll.client.remote.wishes import sandbox_wish
from atoll.errors import InvalidRequest
from atoll.model.container import ContainerOptions
from atoll.model.limits import Limits
from atoll.model.sandbox import SandboxRequest, SandboxSpec
from atoll.server.bodies import ContainerBody, SandboxBody

pytestmark = pytest.mark.any_user

EVERYTHING = ContainerOptions(
    image="debian:12",
    pull="always",
    runtime="crun",
    user="7:8",
    network="bridge",
    volume="team",
    labels={"a": "b"},
    cap_add=("CHOWN",),
    cap_drop=("KILL",),
    seccomp="lax",
    read_only_root=False,
    root_bytes=1 << 30,
    cpu_shares=5,
)


def spec_of(engine: str, /, **body: Any) -> SandboxSpec:
    """Return what a node whose own engine this is gets to make."""
    return SandboxBody(**body).to_request("me", Limits(), engine).spec


def test_every_option_has_its_place() -> None:
    assert set(ContainerBody.model_fields) == {each.name for each in fields(ContainerOptions)}
    assert ContainerBody().to_options() == ContainerOptions()


@pytest.mark.parametrize("options", [EVERYTHING, ContainerOptions(), None])
def test_what_the_sdk_sends_arrives(options: ContainerOptions | None) -> None:
    wish = sandbox_wish(SandboxRequest(SandboxSpec(container=options)), "docker")
    assert spec_of("namespaces", **wish).container == options


def test_only_what_is_said_is_sent() -> None:
    options = ContainerOptions(runtime="runsc")
    wish = sandbox_wish(SandboxRequest(SandboxSpec(container=options)), None)
    assert wish["container"] == {"runtime": "runsc"}


def test_an_image_is_a_template_where_there_are_no_containers() -> None:
    spec = spec_of("namespaces", image="base")
    assert (spec.template, spec.container) == ("base", None)
    with pytest.raises(InvalidRequest, match="template and image mean the same to engine gvisor"):
        spec_of("namespaces", engine="gvisor", image="base", template="python")


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_an_image_is_the_containers_where_there_are(engine: str) -> None:
    for usual, asked in ((engine, None), ("namespaces", engine)):
        spec = spec_of(usual, engine=asked, image="debian", template="node")
        assert (spec.template, spec.container) == ("node", ContainerOptions(image="debian"))
    assert spec_of(engine).container is None
    both = spec_of(engine, image="debian", container={"runtime": "runc"})
    assert both.container == ContainerOptions(image="debian", runtime="runc")
    with pytest.raises(InvalidRequest, match="name one of them"):
        spec_of(engine, image="debian", container={"image": "alpine"})


@pytest.mark.parametrize(
    "wrong",
    [{"privileged": True}, {"pull": "sometimes"}, {"runtime": "kata"}, {"cpu_shares": "many"}],
)
def test_what_there_is_not_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=f"container.{next(iter(wrong))}"):
        SandboxBody.model_validate({"container": wrong})
