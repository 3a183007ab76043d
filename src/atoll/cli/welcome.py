"""What `atoll up` tells whoever started it: where the server is, and how to get in."""

from __future__ import annotations

import json
import sys
from functools import partial

from atoll.cli.messages import notice
from atoll.model.access import OPERATOR
from atoll.server.listening import Welcome
from atoll.server.parts import Parts
from atoll.server.settings import Settings


def welcome_to(settings: Settings, as_json: bool) -> Welcome:
    """Return what is to be told once the server listens."""
    return partial(_tell, settings, as_json)


def _tell(settings: Settings, as_json: bool, parts: Parts, port: int) -> None:
    url = settings.server.url(port)
    if as_json:
        _print(json.dumps({"url": url, **_ways_in(parts, url)}))
    elif sys.stdout.isatty():
        _show(url, **_ways_in(parts, url))
    else:
        # Whoever reads a log must not get in by it; so nothing that lets anybody in is made.
        _print(f"Atoll is at {url}")
        notice("no token is shown where this is not a terminal; 'atoll token create' makes one")


def _ways_in(parts: Parts, url: str) -> dict[str, str | None]:
    """Return a login that works once, and at the first start a token."""
    ways = parts.access.rules.ways
    if "none" in ways:
        return {"login": None, "token": None}
    ticket = parts.access.tickets.make(OPERATOR)
    token = parts.access.create_first_token() if "token" in ways else None
    return {"login": f"{url}/auth/login?ticket={ticket}", "token": token}


def _show(url: str, login: str | None, token: str | None) -> None:
    if login is None:
        _print(f"Atoll is at {url}, open to everybody on this machine.")
    else:
        _print(f"Open {login}\n  in a browser; this address works once, within ten minutes.")
    if token is not None:
        _print(f"Token of admin, shown this once:\n  {token}")
        _print(f"Programs: ATOLL_URL={url} ATOLL_TOKEN=…")


def _print(text: str) -> None:
    print(text, flush=True)
