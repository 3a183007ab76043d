"""Spans of requests, for OpenTelemetry: where an operator wants them, and where its packages are installed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import anyio
import anyio.to_thread
from fastapi.telemetry import TelemetryConfig
from starlette.types import Scope

from atoll.errors import Unsupported

# A collector that does not answer must not hold up the end of a node.
_EXPORT_SECONDS = 5.0


@asynccontextmanager
async def open_tracing(otlp_url: str | None) -> AsyncIterator[TelemetryConfig]:
    """Return what FastAPI is to tell about requests; without an address that is nothing.

    Raises:
        Unsupported: the packages that it takes are not installed.
    """
    if otlp_url is None:
        yield _describe(None)
        return
    provider = _make_provider(otlp_url)
    try:
        yield _describe(provider)
    finally:
        with anyio.move_on_after(_EXPORT_SECONDS, shield=True):
            await anyio.to_thread.run_sync(provider.shutdown, abandon_on_cancel=True)


def _describe(provider: Any) -> TelemetryConfig:
    return {
        "tracer_provider": provider,
        "tracing": provider is not None,
        # Whether there are spans is the operator's choice, not that of a variable some library looks for.
        "auto_configure": False,
        "operation_spans": False,
        # What we count is at /metrics; and what goes wrong goes to one log, without anything secret.
        "metrics": False,
        "logs": False,
        "exclude": _is_secret,
    }


def _is_secret(scope: Scope) -> bool:
    # Tickets and codes stand in the addresses of these, which become part of a span.
    return str(scope["path"]).startswith("/auth/")


def _make_provider(otlp_url: str) -> Any:
    try:
        resources = import_module("opentelemetry.sdk.resources")
        sdk = import_module("opentelemetry.sdk.trace")
        export = import_module("opentelemetry.sdk.trace.export")
        otlp = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"spans need {error.name}, which is not installed",
            next_step="pip install 'atoll[otel]', or leave trace.otlp_url out",
        ) from error
    provider = sdk.TracerProvider(resource=resources.Resource.create({"service.name": "atoll"}))
    exporter = otlp.OTLPSpanExporter(endpoint=otlp_url, timeout=_EXPORT_SECONDS)
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    return provider
