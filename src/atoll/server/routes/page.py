"""The page that a browser gets, and the description of the API: files of our own, nothing of anybody else's."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from atoll.server.auth import Open
from atoll.server.json_bodies import JsonRoute

router = APIRouter(include_in_schema=False, route_class=JsonRoute)
_FOLDER = Path(__file__).parent.parent / "page"
# No script but those files, nothing from elsewhere, and no other page around it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}
_HTML, _SCRIPT, _STYLE = "text/html", "text/javascript", "text/css"


@router.get("/")
async def show_page(_anybody: Open) -> Response:
    """Give the page."""
    return _file("index.html", _HTML)


@router.get("/page.js")
async def page_script(_anybody: Open) -> Response:
    """Give what the page does."""
    return _file("page.js", _SCRIPT)


@router.get("/page.css")
async def page_style(_anybody: Open) -> Response:
    """Give what pages look like."""
    return _file("page.css", _STYLE)


@router.get("/docs")
async def show_description(_anybody: Open) -> Response:
    """Give the page that shows the description of the API."""
    return _file("docs.html", _HTML)


@router.get("/docs.js")
async def description_script(_anybody: Open) -> Response:
    """Give what that page does."""
    return _file("docs.js", _SCRIPT)


@router.get("/openapi.json")
async def describe_api(request: Request, _anybody: Open) -> Response:
    """Give the description of the API."""
    return JSONResponse(request.app.openapi())


def _file(name: str, kind: str) -> Response:
    # Small, and in the machine's memory after the first time.
    return Response((_FOLDER / name).read_bytes(), headers=_HEADERS, media_type=kind)
