"""Templates that were built, of packages or of images: build, list, find, remove; and packages for one sandbox alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Path, Query, Request

from atoll.errors import InvalidRequest, NotFound
from atoll.model.image import LocalImage, parse_image
from atoll.model.packages import parse_packages
from atoll.model.sandbox import LOCAL_OWNER
from atoll.model.template import TemplateInfo
from atoll.node.installs import install
from atoll.server.answers import InstalledAnswer, TemplateAnswer
from atoll.server.auth import Owner
from atoll.server.bodies import InstallBody, TemplateBody
from atoll.server.json_bodies import JsonRoute
from atoll.server.parts import Here, Parts, SandboxKey
from atoll.server.routes.executions import RAW_BODY

router = APIRouter(tags=["templates"], route_class=JsonRoute)
# By its name, or just the one of a digest.
TemplateKey = Annotated[str, Path(pattern="^[a-z0-9][a-z0-9-]{0,63}(@sha256:[0-9a-f]{32,64})?$")]


@router.get("/templates")
async def list_templates(parts: Here, owner: Owner) -> Sequence[TemplateAnswer]:
    """List the templates that were built, by name."""
    found = await anyio.to_thread.run_sync(parts.node.templates.list)
    return [TemplateAnswer.of(info) for info in found if _is_seen(info, owner)]


@router.post("/templates", status_code=201)
async def build_template(body: TemplateBody, parts: Here, owner: Owner) -> TemplateAnswer:
    """Build a template of packages or of a registry's image, or build it anew; answers when it is there, which takes a while."""
    builds = parts.node.builds
    if body.image is not None:
        # Files are those of the server's machine: nobody gets to see them this way.
        if isinstance(parse_image(body.image), LocalImage):
            raise InvalidRequest(
                "image has to be one of a registry; send a file with POST /templates/image?name=NAME"
            )
        allowed = parts.settings.node.image_registries
        registries = None if owner == LOCAL_OWNER else allowed
        info = await builds.build_image(body.name, body.image, registries=registries, owner=owner)
        return TemplateAnswer.of(info)
    info = await builds.build(
        body.name, body.packages, language=body.language, preload=body.preload, owner=owner
    )
    return TemplateAnswer.of(info)


@router.post("/templates/image", status_code=201, openapi_extra=RAW_BODY)
async def send_image(
    request: Request,
    parts: Here,
    owner: Owner,
    name: Annotated[str, Query(max_length=64)],
    image: Annotated[str | None, Query(max_length=256)] = None,
) -> TemplateAnswer:
    """Build a template of an image that is sent: what `docker save` writes, or the archive of an OCI layout.

    If it holds several images, `image` says which.
    """
    builds = parts.node.builds
    return TemplateAnswer.of(await builds.build_upload(name, request.stream(), image, owner=owner))


@router.get("/templates/{template}")
async def get_template(template: TemplateKey, parts: Here, owner: Owner) -> TemplateAnswer:
    """Tell about a template that was built."""
    return TemplateAnswer.of(await _find(parts, template, owner))


@router.delete("/templates/{template}", status_code=204)
async def remove_template(template: TemplateKey, parts: Here, owner: Owner) -> None:
    """Remove a template that was built; sandboxes that have it lose its files."""
    try:
        await anyio.to_thread.run_sync(parts.node.templates.remove, template, owner)
    except NotFound:
        raise _missing(template) from None


@router.post("/sandboxes/{sandbox}/install")
async def install_packages(
    sandbox: SandboxKey, body: InstallBody, parts: Here, owner: Owner
) -> InstalledAnswer:
    """Install packages into one sandbox, whose network has to allow the package indexes."""
    resident = parts.node.find(sandbox, owner)
    wanted = parse_packages(body.packages, body.language)
    with resident.hosted.activity:
        result = await install(resident.hosted, wanted, body.language, parts.timeout(body.timeout))
    return InstalledAnswer.of(result)


async def _find(parts: Parts, name: str, owner: str) -> TemplateInfo:
    try:
        info = await anyio.to_thread.run_sync(parts.node.templates.find, name)
    except NotFound:
        raise _missing(name) from None
    if not _is_seen(info, owner):
        raise _missing(name)
    return info


def _is_seen(info: TemplateInfo, owner: str) -> bool:
    return info.owner in (LOCAL_OWNER, owner)


def _missing(name: str) -> NotFound:
    # The same words for another's as for one that is not there.
    return NotFound(
        f"there is no template {name!r} that was built here; `atoll template ls` tells which there are"
    )
