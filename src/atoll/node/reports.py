"""Errors of work that nobody waits for: told in the log, for nobody else would hear of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from atoll.errors import AtollError

_log = logging.getLogger(__name__)


@contextmanager
def reported(event: str, **fields: object) -> Iterator[None]:
    """Report an error where nobody is there to be told."""
    try:
        yield
    except AtollError as error:
        _log.error(event, extra={**fields, "reason": error.message})
    except Exception:  # noqa: BLE001 - one sandbox must never end the node, and all others with it
        _log.exception(event, extra={**fields, "reason": "internal error"})
