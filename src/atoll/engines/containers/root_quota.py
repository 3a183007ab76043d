"""Whether an engine's storage holds a container's root to a size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ROOT_QUOTA_FIX = "put the engine's data on xfs (pquota), btrfs or a disk of its own"


def root_quota(info: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether it does as far as an engine's description tells, and by what, or why not.

    An engine on xfs says only when a container is made whether quotas are on.
    """
    status = {
        str(each[0]): str(each[1]) for each in info.get("DriverStatus") or () if len(each) > 1
    }
    driver = str(info.get("Driver") or "unknown")
    disk = status.get("Backing Filesystem", "an unknown file system")
    if driver in ("btrfs", "zfs"):
        return True, f"{driver}: by its own quotas"
    if driver.startswith("overlay") and disk == "xfs":
        return True, f"{driver} on xfs: project quotas, where it is mounted with pquota"
    return False, f"{driver} on {disk} holds a root that can be written to no size"
