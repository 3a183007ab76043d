"""A small OAuth server that speaks as GitHub does: codes that work once, bound to a client, a redirect and a PKCE challenge."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "client-of-the-test", "secret-of-the-client"


@dataclass
class OAuthServer:
    """Where people have accounts; `person` is who sits at the browser."""

    url: str = ""
    person: dict[str, Any] = field(default_factory=lambda: {"id": 7, "login": "Octocat"})
    callback: str = ""
    is_away: bool = False
    knows_pkce: bool = True  # servers of one's own may be older
    _grants: dict[str, dict[str, str]] = field(default_factory=dict)
    _tokens: dict[str, dict[str, Any]] = field(default_factory=dict)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/login/oauth/authorize", self._authorize),
                Route("/login/oauth/access_token", self._grant, methods=["POST"]),
                Route("/user", self._tell_user),
            ]
        )

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        if asked.get("client_id") != CLIENT or asked.get("code_challenge_method") != "S256":
            return JSONResponse({"error": "bad client"}, 404)
        code = secrets.token_hex(10)
        self._grants[code] = asked
        back = asked.get("redirect_uri", self.callback)
        return RedirectResponse(f"{back}?{urlencode({'code': code, 'state': asked['state']})}", 302)

    async def _grant(self, request: Request) -> Response:
        if self.is_away:
            return Response("<html>unicorn</html>", 503)
        form = parse_qs((await request.body()).decode())
        shown = {name: values[0] for name, values in form.items()}
        asked = self._grants.pop(shown.get("code", ""), {})
        verifier = hashlib.sha256(shown.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(verifier).rstrip(b"=").decode()
        fits = bool(
            (shown.get("client_id"), shown.get("client_secret")) == (CLIENT, SECRET)
            and (asked.get("code_challenge") == challenge or not self.knows_pkce)
            and asked
            and asked.get("redirect_uri") == shown.get("redirect_uri")
        )
        if not fits:
            # GitHub answers 200 to this, too.
            return JSONResponse({"error": "bad_verification_code"})
        token = secrets.token_hex(20)
        self._tokens[token] = self.person
        return JSONResponse({"access_token": token, "token_type": "bearer", "scope": ""})

    async def _tell_user(self, request: Request) -> Response:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        person = self._tokens.get(token)
        return JSONResponse({"message": "bad"}, 401) if person is None else JSONResponse(person)


@asynccontextmanager
async def running_oauth_server() -> AsyncIterator[OAuthServer]:
    """Serve at any free port of this machine."""
    github = OAuthServer()
    config = uvicorn.Config(
        github.app(), host="127.0.0.1", port=0, log_config=None, lifespan="off", loop="none"
    )
    server = _Server(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        with anyio.fail_after(60):
            while not server.started:
                await anyio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        github.url = f"http://127.0.0.1:{port}"
        yield github
        server.should_exit = True


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the server that is tested."""
        yield
