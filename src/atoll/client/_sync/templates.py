# Generated from _async by tools/generate_sync.py; edit that.
"""Templates that were built, of packages or of images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from atoll.client._sync.watching import watch
from atoll.client.nodes import find_errands
from atoll.client.progress import ProgressCallback
from atoll.model.packages import Packages, find_built_language, parse_packages
from atoll.model.template import TemplateInfo


class Templates:
    """The templates of this user; `Sandbox("name")` is made from one."""

    def __init__(
        self, *, engine: str | None = None, url: str | None = None, token: str | None = None
    ) -> None:
        """Say whose: those of the server at `url`, else at ATOLL_URL, else of this machine."""
        self._errands = find_errands(url, token, engine)

    def list(self) -> Sequence[TemplateInfo]:
        """Return facts about all of them, by name."""
        return self._errands.way.call(self._errands.list_templates)

    def find(self, name: str) -> TemplateInfo:
        """Return facts about one; raises `NotFound`."""
        return self._errands.way.call(self._errands.find_template, name)

    def build(
        self,
        name: str,
        packages: Packages,
        *,
        language: str = "python",
        preload: Sequence[str] | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> TemplateInfo:
        """Build one with packages, or build it anew; returns when it is there, which takes a while.

        They are packages of Python's, or with language "node" of npm's. Kernels of Python find the modules of `preload`
        loaded, else those that the packages are known by.
        """
        language = find_built_language(language)
        wanted = parse_packages(packages, language)
        way = self._errands.way
        build = self._errands.build_template
        return watch(way, on_progress, "template", build, name, wanted, language, preload)

    def build_image(
        self, name: str, image: str, *, on_progress: ProgressCallback | None = None
    ) -> TemplateInfo:
        """Build one whose root is that of an image, or build it anew; returns when it is there.

        The image is `docker-archive:FILE` (of `docker save`), `oci:DIRECTORY`, or what a registry calls it.

        Raises:
            NotFound: there is no such image.
            InvalidRequest: it is broken, or not what its digests say.
        """
        way = self._errands.way
        build = self._errands.build_image_template
        return watch(way, on_progress, "template", build, name, image)

    def build_dockerfile(
        self,
        name: str,
        folder: str | Path,
        *,
        is_unpacked: bool = True,
        on_progress: ProgressCallback | None = None,
    ) -> TemplateInfo:
        """Build one of a directory with a Dockerfile, by engine `docker` or `podman`: `Templates(engine="docker")`.

        That engine keeps the image; with `is_unpacked` engines `namespaces` and `gvisor` have its files, too.

        Raises:
            CommandFailed: a step of the Dockerfile failed; the message has its words.
            Unsupported: of a server.
        """
        way = self._errands.way
        build = self._errands.build_dockerfile_template
        return watch(way, on_progress, "template", build, name, Path(folder), is_unpacked)

    def pull(self, image: str, *, on_progress: ProgressCallback | None = None) -> str:
        """Have engine `docker` or `podman` fetch an image by its name, or that of a template; return its id.

        The image of a template that cannot be fetched is made from packages of this machine's distribution, where it can be.
        """
        pull = self._errands.pull_image
        return watch(self._errands.way, on_progress, "image", pull, image)

    def remove(self, name: str) -> None:
        """Remove one; sandboxes that have it lose its files. Raises `NotFound`."""
        self._errands.way.call(self._errands.remove_template, name)
