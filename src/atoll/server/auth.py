"""Who is asking: the one function that says so for every route."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends

from atoll.model.sandbox import LOCAL_OWNER


async def find_owner() -> str:
    """Return whose sandboxes the caller may see.

    Only the user of the node can open its socket, so whoever comes this way is that user.
    """
    return LOCAL_OWNER


Owner = Annotated[str, Depends(find_owner)]
