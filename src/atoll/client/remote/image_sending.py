"""Images for a server: named, if a registry has them, else sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atoll.client.http import HttpNode
from atoll.client.remote.trees import host_errors, pack, read_file
from atoll.model.image import ImagePlace, RegistryImage, parse_image
from atoll.model.tree import TreeReport


async def build_of_image(node: HttpNode, name: str, image: str) -> Any:
    """Have a server build a template of an image; return its answer."""
    wanted = parse_image(image)
    if isinstance(wanted, RegistryImage):
        return await node.call("POST", "/templates", body={"name": name, "image": image})
    path, report = Path(wanted.path), TreeReport()
    params = {"name": name, "image": wanted.name}
    with host_errors(path):
        data = pack(path, report) if wanted.place is ImagePlace.LAYOUT else read_file(path, report)
        return await node.call("POST", "/templates/image", data=data, params=params)
