"""The description of the API: what FastAPI finds in the routes, with the one shape of errors and the ways to show who asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI

from atoll.server.auth import open_paths
from atoll.server.errors import PROBLEM, Problem

# FastAPI's own shape of what is wrong with a request, which is not ours.
_FOREIGN = ("HTTPValidationError", "ValidationError")
_SECURITY: list[dict[str, list[str]]] = [{"token": []}, {"session": []}]


class DescribedApp(FastAPI):
    """An application whose description says all of it."""

    def openapi(self) -> dict[str, Any]:
        """Return the description, made once."""
        if self.openapi_schema is None:
            document = super().openapi()
            _describe_errors(document)
            _describe_access(document, open_paths(self.routes))
        return super().openapi()


def _describe_errors(document: dict[str, Any]) -> None:
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in _FOREIGN:
        schemas.pop(name, None)
    schemas["Problem"] = Problem.model_json_schema()
    components["responses"] = {
        "Problem": {
            "description": Problem.__doc__,
            "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    }
    for _, operation in _operations(document):
        responses = operation.setdefault("responses", {})
        responses.pop("422", None)
        responses["default"] = {"$ref": "#/components/responses/Problem"}


def _describe_access(document: dict[str, Any], open_to_all: frozenset[str]) -> None:
    document["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "session": {"type": "apiKey", "in": "cookie", "name": "atoll_session"},
    }
    for path, operation in _operations(document):
        operation["security"] = [] if path in open_to_all else _SECURITY


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, item in document.get("paths", {}).items():
        for operation in item.values():
            yield path, operation
