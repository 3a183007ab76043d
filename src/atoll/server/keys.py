"""The header `Idempotency-Key`, and how a repeated answer is marked."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from fastapi import Header

IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key")]
REPLAYED: Mapping[str, str] = MappingProxyType({"Idempotent-Replay": "true"})
