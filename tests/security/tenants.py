"""Two who share a server: everything that one has of each kind that a route can name, and requests for all of it."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import anyio
import httpx2
from fastapi.routing import RouteContext

from atoll.model.access import Token, User
from atoll.model.ids import new_execution_id, new_sandbox_id, new_token_id
from atoll.model.template import TemplateInfo
from atoll.server.auth import every_route, mark_of
from tests.image_files import an_image
from tests.server.serving import Served

# Of streams that do not end by themselves, what comes at once is enough.
_STREAM_SECONDS = 0.5
_MOST_BYTES = 1 << 20
_EMPTY_ARCHIVE = bytes(10240)
_HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@dataclass(frozen=True)
class Tenant:
    """A user with one thing of each kind. All that he names or writes holds `word`."""

    user: User
    token: Token
    text: str = field(repr=False)
    word: str
    named: Mapping[str, str]  # by the names of parameters in paths

    @property
    def canaries(self) -> Sequence[str]:
        """What nobody else may ever see."""
        kinds = ("sandbox", "execution", "kernel", "token")
        return [self.word, self.user.id, *(self.named[kind] for kind in kinds)]


def random_names() -> Mapping[str, str]:
    """Return names of the same shapes that nothing has."""
    word = secrets.token_hex(6)
    return {
        "sandbox": new_sandbox_id(),
        "final": new_sandbox_id(),
        "execution": new_execution_id(),
        "kernel": new_execution_id(),
        "workspace": f"w-{word}",
        "template": f"t-{word}",
        "name": f"s-{word}",
        "token": new_token_id(),
        "user": f"u-{word}",
        "path": f"{word}.txt",
        "port": "8080",
    }


async def make_tenant(served: Served, name: str) -> Tenant:
    """Return a new user who has something of everything."""
    user = served.add_user(name)
    token, text = served.add_token(user)
    word = f"x{secrets.token_hex(6)}x"
    names = {
        **random_names(),
        "workspace": f"w-{word}",
        "template": f"t-{word}",
        "name": f"s-{word}",
        "token": token.id,
        "user": user.id,
        "path": f"{word}.txt",
    }
    tenant = Tenant(user, token, text, word, names)
    _publish_template(served, tenant)
    async with served.client(text) as client:
        secret = {"value": f"value-{word}", "hosts": ["api.example"]}
        await client.call("PUT", f"/secrets/s-{word}", body=secret)
    return await add_sandbox(served, tenant, workspace=f"w-{word}", name=f"n-{word}")


async def add_sandbox(served: Served, tenant: Tenant, **options: Any) -> Tenant:
    """Return the tenant with another sandbox, where the same things are."""
    word = tenant.word
    async with served.client(tenant.text) as client:
        made = await client.call("POST", "/sandboxes", body={"template": "python", **options})
        path = f"/sandboxes/{made['id']}"
        kernel = await client.call("POST", f"{path}/kernels", body={"language": "python"})
        await client.ask("PUT", f"{path}/files/{word}.txt", data=_chunks(word.encode()))
        started = await client.call(
            "POST", f"{path}/executions", body={"argv": ["echo", word], "wait": True}
        )
    found = {"sandbox": made["id"], "final": made["id"], "kernel": kernel["id"]}
    return replace(tenant, named={**tenant.named, **found, "execution": started["id"]})


async def start_execution(served: Served, tenant: Tenant, kind: str = "command") -> Tenant:
    """Return the tenant with an execution that waits for input."""
    async with served.client(tenant.text) as client:
        body = {"argv": ["cat"], "kind": kind, "keep_stdin": kind == "command"}
        path = f"/sandboxes/{tenant.named['sandbox']}/executions"
        started = await client.call("POST", path, body=body)
    return replace(tenant, named={**tenant.named, "execution": started["id"]})


async def describe(served: Served, tenant: Tenant) -> Mapping[str, Any]:
    """Return all that a tenant has, but for when it was used."""
    paths = ["/sandboxes", "/secrets", "/workspaces", "/templates", "/tokens", "/auth/me"]
    inside = ["executions", "kernels", f"stat?path={tenant.word}.txt", "egress"]
    sandbox = f"/sandboxes/{tenant.named['sandbox']}"
    found = {}
    async with served.browser(tenant.text) as browser:
        for path in (*paths, *(f"{sandbox}/{each}" for each in inside)):
            answer = await browser.get(path)
            assert answer.status_code == 200, (path, answer.text)
            found[path] = _without_uses(answer.json())
    return found


def _without_uses(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_uses(each) for each in value]
    if isinstance(value, dict):
        kept = {name: _without_uses(each) for name, each in value.items()}
        return {
            name: each
            for name, each in kept.items()
            if name not in ("last_used_at", "last_active_at", "used_bytes")
        }
    return value


def _publish_template(served: Served, tenant: Tenant) -> None:
    templates = served.parts.node.templates
    info = TemplateInfo(
        name=f"t-{tenant.word}",
        digest="",
        owner=tenant.user.id,
        packages=(f"p-{tenant.word}",),
        distributions=(),
        preload=(),
        interpreter=sys.version,
        made_at=time.time(),
    )
    with templates.scratch() as folder:
        templates.publish(info, folder)


async def _chunks(data: bytes) -> Any:
    yield data


# --- requests -----------------------------------------------------------------------------------------------

BODIES: Mapping[tuple[str, str], Any] = {
    ("POST", "/sandboxes"): {"template": "base"},
    ("PATCH", "/sandboxes/{sandbox}"): {"label": "changed"},
    ("POST", "/sandboxes/{sandbox}/fork"): {"label": "copy"},
    ("POST", "/sandboxes/{sandbox}/executions"): {"argv": ["true"]},
    ("POST", "/sandboxes/{sandbox}/execute"): {"code": "true"},
    ("POST", "/executions/{execution}/input"): {"text": "line"},
    ("POST", "/executions/{execution}/stop"): {"grace": 0},
    ("POST", "/executions/{execution}/signal"): {"signal": 10},
    ("POST", "/executions/{execution}/resize"): {"rows": 10, "columns": 10},
    ("POST", "/sandboxes/{sandbox}/kernels"): {"language": "python"},
    ("POST", "/sandboxes/{sandbox}/kernels/ask"): {"kind": "complete", "code": "pri"},
    ("POST", "/sandboxes/{sandbox}/kernels/restart"): {},
    ("POST", "/sandboxes/{sandbox}/kernels/interrupt"): {},
    ("POST", "/sandboxes/{sandbox}/make_dir"): {"path": "made"},
    ("POST", "/sandboxes/{sandbox}/rename"): {"source": "made", "target": "renamed"},
    ("POST", "/sandboxes/{sandbox}/install"): {"packages": ["six"], "timeout": "1s"},
    ("PUT", "/sandboxes/{sandbox}/network"): {"network": "none"},
    ("POST", "/templates"): {"name": "base", "packages": ["six"]},
    ("PUT", "/pools"): {"count": 0},
    ("PUT", "/secrets/{name}"): {"value": "another value", "hosts": ["api.example"]},
    ("POST", "/auth/token"): {"token": "none"},
    ("POST", "/tokens"): {"scope": "read"},
    ("POST", "/users"): {"name": "somebody"},
}
FILES = {("POST", "/sandboxes/{sandbox}/files/{path}")}
QUERIES: Mapping[str, Mapping[str, str]] = {
    "path": {"path": "."},
    "pattern": {"pattern": "a"},
    "glob": {"glob": "*"},
    "ticket": {"ticket": "none"},
    "name": {"name": "sent"},
}
# Nobody waits for a port here.
WAIT = "/sandboxes/{sandbox}/ports/{port}/wait"
# Where a file has to be named rather than a directory.
PAGES = ("/sandboxes/{sandbox}/page", "/inspector/sandboxes/{sandbox}/files/content")


@dataclass(frozen=True)
class Ask:
    """A request that a route takes, as far as names are left open."""

    method: str
    path: str
    mark: str
    parameters: frozenset[str]
    query: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def reads(self) -> bool:
        return self.method in ("GET", "HEAD")

    def fill(self, named: Mapping[str, str]) -> str:
        """Return the path with names in it; one that the test does not know has to be added to it."""
        if (self.method, self.path) in FILES:
            named = {**named, "path": "uploads"}
        return self.path.format(**{each: quote(named[each], safe="") for each in self.parameters})

    async def send(
        self, browser: httpx2.AsyncClient, named: Mapping[str, str], **options: Any
    ) -> Answer:
        """Send it, and return what came at once."""
        path = self.fill(named)
        if self.method == "WS":
            return await _open_socket(browser, path, **options)
        if (self.method, self.path) in FILES:
            options["files"] = {"files": ("name.txt", b"content")}
        elif self.path.endswith("/archive"):
            options["content"] = _EMPTY_ARCHIVE
        elif self.path == "/templates/image":
            options["content"] = an_image()
        elif (body := BODIES.get((self.method, self.path))) is not None:
            options["json"] = body
        query = {**self.query, **({"timeout": "0"} if self.path == WAIT else {})}
        if self.path in PAGES:
            query["path"] = named["path"]
        async with browser.stream(self.method, path, params=query, **options) as answer:
            text = await _read(answer)
        return Answer(answer.status_code, text)


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    text: str

    @property
    def is_fine(self) -> bool:
        return self.status < 300 or self.status == 501

    def without(self, named: Mapping[str, str]) -> Answer:
        """Return it without what was asked for, which it may repeat."""
        text = self.text
        for kind, name in sorted(named.items(), key=lambda each: -len(each[1])):
            if kind != "port":
                text = text.replace(name, f"<{kind}>")
        # The same sandbox may be named by two parameters.
        return Answer(self.status, text.replace("<final>", "<sandbox>"))


def every_ask(routes: Sequence[Any]) -> Iterator[Ask]:
    """Yield a request for each route, WebSockets included; a body that is needed and not known fails the test."""
    for route in every_route(routes):
        for method in sorted(getattr(route, "methods", None) or {"WS"}):
            yield _ask(route, method)


def _ask(route: RouteContext, method: str) -> Ask:
    path = route.path_format or ""
    known = (method, path) in BODIES or (method, path) in FILES
    assert known or getattr(route, "body_field", None) is None, f"add a body: {method} {path}"
    mark = mark_of(route)
    assert mark is not None
    required = [each.name for each in route.dependant.query_params if each.field_info.is_required()]
    query = {name: value for each in required for name, value in QUERIES[each].items()}
    return Ask(method, path, mark.__name__, frozenset(route.param_convertors), query)


async def _open_socket(
    browser: httpx2.AsyncClient, path: str, headers: Mapping[str, str] | None = None
) -> Answer:
    # By hand: a client of WebSockets does not show what a refusal says.
    async with browser.stream("GET", path, headers={**_HANDSHAKE, **(headers or {})}) as answer:
        text = "" if answer.status_code == 101 else await _read(answer)
    return Answer(answer.status_code, text)


async def _read(answer: httpx2.Response) -> str:
    content = b""
    with anyio.move_on_after(_STREAM_SECONDS if answer.is_success else 30):
        async for chunk in answer.aiter_raw():
            content += chunk
            if len(content) > _MOST_BYTES:
                break
    return content.decode("utf-8", "replace")
