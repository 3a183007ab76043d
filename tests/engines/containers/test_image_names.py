"""Whose an image is by its name, and where an engine would fetch it from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from atoll.engines.containers.client import EngineClient
from atoll.engines.containers.image_names import parse_name
from atoll.engines.containers.images import Images
from atoll.engines.containers.settings import ContainerSettings
from atoll.errors import InvalidRequest, NotFound, Unavailable
from atoll.model.container import ContainerOptions
from atoll.model.sandbox import SandboxSpec

pytestmark = pytest.mark.any_user

DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("text", "host", "path", "tag"),
    [
        ("debian", "docker.io", "library/debian", "latest"),
        ("debian:12", "docker.io", "library/debian", "12"),
        ("docker.io/debian:12", "docker.io", "library/debian", "12"),
        ("index.docker.io/library/debian:12", "docker.io", "library/debian", "12"),
        (f"team/tool@{DIGEST}", "docker.io", "team/tool", None),
        (f"team/tool:1@{DIGEST}", "docker.io", "team/tool", "1"),
        ("localhost/tool", "localhost", "tool", "latest"),
        ("10.0.0.5:8443/x", "10.0.0.5:8443", "x", "latest"),
        ("registry.example/team/tool:1", "registry.example", "team/tool", "1"),
        # Newer engines take this for a host, and ask the search domains for it.
        ("METADATA/x", "METADATA", "x", "latest"),
        ("docker.io:443/x", "docker.io:443", "x", "latest"),
    ],
)
def test_a_name_is_read_as_engines_read_it(
    text: str, host: str, path: str, tag: str | None
) -> None:
    assert parse_name(text) == (host, path, tag)


class EmptyEngine(EngineClient):
    """One that has no image; it notes what it was asked to do, and would reach anything."""

    def __init__(self) -> None:
        super().__init__("docker", "unix:///nowhere", None, 1.0)
        self.asked: list[str] = []

    async def ask(
        self, what: str, call: Callable[[Any], Awaitable[Any]], *, seconds: float = 60.0
    ) -> Any:
        self.asked.append(what)
        if what.startswith("pull"):
            raise Unavailable("10.0.0.5 said: a secret")
        raise NotFound("there is none")

    @property
    def pulled(self) -> list[str]:
        return [each for each in self.asked if each.startswith("pull")]


INSIDE = ("10.0.0.5:8443/x", "localhost/x", "localhost:5000/x:1", "intra.example/x", "METADATA/x")


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize("pull", ["missing", "always"])
async def test_callers_make_no_engine_connect_where_they_like(name: str, pull: Any) -> None:
    engine = EmptyEngine()
    spec = SandboxSpec(container=ContainerOptions(image=name, pull=pull))
    with pytest.raises(InvalidRequest, match=r"containers\.registries"):
        await Images(engine, 1.0).find(spec, ContainerSettings())
    assert not engine.pulled


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("debian:12", ContainerSettings()),
        ("docker.io/team/tool", ContainerSettings()),
        ("registry.example:5000/x", ContainerSettings(registries=("registry.example:5000",))),
        ("intra.example/x", ContainerSettings(images={"base": "intra.example/x"})),
        ("10.0.0.5:8443/x", ContainerSettings(own_program=True)),
    ],
)
async def test_what_the_operator_allows_is_fetched(name: str, settings: ContainerSettings) -> None:
    engine = EmptyEngine()
    spec = SandboxSpec(container=ContainerOptions(image=name))
    with pytest.raises(Unavailable):
        await Images(engine, 1.0).find(spec, settings)
    assert engine.pulled == [f"pull image {name}"]


async def test_what_is_made_here_is_fetched_from_nowhere() -> None:
    engine = EmptyEngine()
    images = Images(engine, 1.0)
    name = "atoll-template/tool:latest"
    settings = ContainerSettings(images={"base": name}, own_program=True)
    for options in (
        None,
        ContainerOptions(image=name),
        ContainerOptions(image=name, pull="always"),
    ):
        with pytest.raises(InvalidRequest, match="never fetched"):
            await images.find(SandboxSpec(container=options), settings)
    with pytest.raises(InvalidRequest, match="never fetched"):
        await images.pull("docker.io/atoll-preset/python:1")
    assert not engine.pulled
