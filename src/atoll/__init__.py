"""Atoll runs code that nobody vouches for in a sealed sandbox. This is its public Python API.

Names are loaded when they are first used, so that `import atoll` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll.client._async.sandbox import AsyncSandbox
    from atoll.client._async.secrets import AsyncSecrets
    from atoll.client._async.templates import AsyncTemplates
    from atoll.client._async.workspaces import AsyncWorkspaces
    from atoll.client._sync.sandbox import Sandbox
    from atoll.client._sync.secrets import Secrets
    from atoll.client._sync.templates import Templates
    from atoll.client._sync.workspaces import Workspaces
    from atoll.client.progress import Progress
    from atoll.errors import (
        AtollError,
        CommandFailed,
        Conflict,
        Forbidden,
        InternalError,
        InvalidRequest,
        LimitExceeded,
        NotFound,
        TimedOut,
        Unauthorized,
        Unavailable,
        Unsupported,
    )
    from atoll.model.container import ContainerOptions
    from atoll.model.file import FileInfo
    from atoll.model.kernel import Bundle, Cell, CellError, KernelInfo
    from atoll.model.limits import Limits
    from atoll.model.process import CommandResult, Output
    from atoll.model.sandbox import SandboxInfo, WorkspaceInfo
    from atoll.model.secret import Secret, SecretInfo
    from atoll.model.template import TemplateInfo

    __version__: str

__all__ = [
    "AsyncSandbox",
    "AsyncSecrets",
    "AsyncTemplates",
    "AsyncWorkspaces",
    "AtollError",
    "Bundle",
    "Cell",
    "CellError",
    "CommandFailed",
    "CommandResult",
    "Conflict",
    "ContainerOptions",
    "FileInfo",
    "Forbidden",
    "InternalError",
    "InvalidRequest",
    "KernelInfo",
    "LimitExceeded",
    "Limits",
    "NotFound",
    "Output",
    "Progress",
    "Sandbox",
    "SandboxInfo",
    "Secret",
    "SecretInfo",
    "Secrets",
    "TemplateInfo",
    "Templates",
    "TimedOut",
    "Unauthorized",
    "Unavailable",
    "Unsupported",
    "WorkspaceInfo",
    "Workspaces",
    "__version__",
]


_PLACES = {
    "AsyncSandbox": "atoll.client._async.sandbox",
    "AsyncSecrets": "atoll.client._async.secrets",
    "AsyncTemplates": "atoll.client._async.templates",
    "AsyncWorkspaces": "atoll.client._async.workspaces",
    "Bundle": "atoll.model.kernel",
    "Cell": "atoll.model.kernel",
    "CellError": "atoll.model.kernel",
    "CommandResult": "atoll.model.process",
    "ContainerOptions": "atoll.model.container",
    "FileInfo": "atoll.model.file",
    "KernelInfo": "atoll.model.kernel",
    "Limits": "atoll.model.limits",
    "Output": "atoll.model.process",
    "Progress": "atoll.client.progress",
    "Sandbox": "atoll.client._sync.sandbox",
    "SandboxInfo": "atoll.model.sandbox",
    "Secret": "atoll.model.secret",
    "SecretInfo": "atoll.model.secret",
    "Secrets": "atoll.client._sync.secrets",
    "TemplateInfo": "atoll.model.template",
    "Templates": "atoll.client._sync.templates",
    "WorkspaceInfo": "atoll.model.sandbox",
    "Workspaces": "atoll.client._sync.workspaces",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("atoll")
    elif name in __all__:
        from importlib import import_module

        value = getattr(import_module(_PLACES.get(name, "atoll.errors")), name)
    else:
        raise AttributeError(f"module 'atoll' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
