"""Containers of a node in one's own program: where the engine is, and how a caller says what he wants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atoll import ContainerOptions, InvalidRequest, Sandbox
from atoll.client.calls import make_container, make_spec
from atoll.client.containers import container_settings
from atoll.engines.catalog import CONTAINER_PRESETS, TlsFiles

pytestmark = pytest.mark.any_user


def test_without_a_word_the_usual_engine_is_used() -> None:
    settings = container_settings("docker", {})
    assert (settings.endpoint, settings.tls, settings.runtime) == ("", None, None)
    assert settings.images == CONTAINER_PRESETS
    # Whoever embeds a node is its operator.
    assert settings.allow_root and settings.allow_writable_root and settings.any_image
    assert settings.own_program and not settings.own_ids


def test_the_engines_own_variables_tell_where_it_is(tmp_path: Path) -> None:
    environ = {
        "DOCKER_HOST": "tcp://engine.example:2376",
        "DOCKER_CERT_PATH": str(tmp_path),
        "CONTAINER_HOST": "unix:///run/user/1/podman.sock",
    }
    docker, podman = (container_settings(name, environ) for name in ("docker", "podman"))
    assert docker.endpoint == "tcp://engine.example:2376"
    assert docker.tls == TlsFiles(*(tmp_path / f"{name}.pem" for name in ("ca", "cert", "key")))
    assert (podman.endpoint, podman.tls) == ("unix:///run/user/1/podman.sock", None)
    own = {**environ, "ATOLL_CONTAINERS__DOCKER_ENDPOINT": "unix:///own.sock"}
    assert container_settings("docker", own).endpoint == "unix:///own.sock"


def test_the_rest_is_said_as_to_a_server(tmp_path: Path) -> None:
    profile = tmp_path / "lax.json"
    profile.write_text("{}")
    settings = container_settings(
        "docker",
        {
            "ATOLL_CONTAINERS__RUNTIME": "runsc",
            "ATOLL_CONTAINERS__IMAGES": "python=own:1, tools=own/tools:2",
            "ATOLL_CONTAINERS__NETWORKS": "inner",
            "ATOLL_CONTAINERS__SECCOMP_PROFILES": f"lax={profile}",
        },
    )
    assert settings.runtime == "runsc"
    assert settings.images == {"python": "own:1", "tools": "own/tools:2"}
    assert settings.networks == ("inner",)
    assert settings.seccomp_profiles == {"lax": profile}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DOCKER_HOST", "ssh://somewhere"),
        ("ATOLL_CONTAINERS__DOCKER_ENDPOINT", "/run/docker.sock"),
        ("ATOLL_CONTAINERS__RUNTIME", "kata"),
        ("ATOLL_CONTAINERS__IMAGES", "python"),
    ],
)
def test_what_cannot_be_is_refused_by_its_variable(variable: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{variable}.*{value}"):
        container_settings("docker", {variable: value})


def test_a_profile_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"'lax' is no file: /nowhere/lax\.json"):
        container_settings(
            "docker", {"ATOLL_CONTAINERS__SECCOMP_PROFILES": "lax=/nowhere/lax.json"}
        )


def test_an_image_is_short_for_options_with_it() -> None:
    assert make_container(None, None) is None
    assert make_container("debian", None) == ContainerOptions(image="debian")
    assert make_container("debian", {"runtime": "runc"}) == ContainerOptions(
        image="debian", runtime="runc"
    )
    same = ContainerOptions(image="debian")
    assert make_container("debian", same) == same


def test_a_kernel_is_made_ahead_only_where_a_template_promises_one() -> None:
    assert make_spec("python", None, None, container=ContainerOptions(runtime="runc")).kernel
    assert not make_spec("python", None, None, container=ContainerOptions(image="debian")).kernel


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"container": {"privileged": True}}, "no container option 'privileged'; there is: image"),
        ({"container": {"pull": "sometimes"}}, "pull is 'sometimes'"),
        ({"container": "debian"}, "container is str"),
        ({"image": "debian", "container": "debian"}, "container is str"),
        ({"image": "debian", "container": {"image": "alpine"}}, "name one of them"),
        ({"image": "no image"}, "image 'no image' is no name"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_asked(
    arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        Sandbox(engine="docker", **arguments)
