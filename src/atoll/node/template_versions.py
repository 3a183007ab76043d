"""Which version of its template a sandbox would be made from now."""

from __future__ import annotations

import anyio.to_thread

from atoll.engines.contract import Feature
from atoll.model.sandbox import SandboxSpec
from atoll.node.engines import Engines
from atoll.node.templates import Templates


class TemplateVersions:
    """Tells one version of a template from the next, for every engine."""

    def __init__(self, engines: Engines, templates: Templates | None = None) -> None:
        self._engines = engines
        self._templates = templates

    def here(self, spec: SandboxSpec) -> str:
        """Return the version of a template that is a tree of this node's; in any thread."""
        return "" if self._templates is None else self._templates.version(spec.template)

    async def find(self, spec: SandboxSpec) -> str:
        """Return the version of a sandbox's template: a digest, or the id of its image; errors as `Engine.create`."""
        engine = self._engines.find(spec.engine)
        if Feature.IMAGES in engine.features:
            return await engine.image_of(spec)
        # One that is asked for the first time is made then.
        return await anyio.to_thread.run_sync(self.here, spec)
