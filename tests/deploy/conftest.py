"""The image of a server, built from this checkout on a base that was made here."""

from __future__ import annotations

import json
from functools import partial

import pytest

from tests.deploy.docker import Docker
from tools import image
from tools.container_daemons import DockerDaemon
from tools.container_images import import_image

_SERVER = "atoll-server"
# A stage with a name of its own: what takes longest is the same for many checkouts.
_DEPENDENCIES = "atoll-server-dependencies"


@pytest.fixture(scope="session")
def docker(docker_daemon: DockerDaemon) -> Docker:
    """The command line of the tests' own daemon."""
    return Docker(docker_daemon.url)


@pytest.fixture(scope="session")
def base_image(docker_daemon: DockerDaemon) -> str:
    """What all images here are built on."""
    return import_image(docker_daemon, "deploy")


@pytest.fixture(scope="session")
def server_image(
    docker_daemon: DockerDaemon,
    docker: Docker,
    base_image: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """What `./atoll image` builds of this checkout."""
    context = tmp_path_factory.mktemp("image")
    image.fill_context(context, offline=True)
    build = partial(image.build_context, context, base=base_image, offline=True, env=docker.env)
    build(_DEPENDENCIES, target="dependencies")
    build(_SERVER)
    # Those of earlier checkouts have lost their names.
    old = json.dumps({"dangling": ["true"]})
    docker_daemon.call("POST", "/images/prune", filters=old)
    return _SERVER
