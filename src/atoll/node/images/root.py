"""What a sandbox needs in its root, put into the tree of an image, whatever that says of it."""

from __future__ import annotations

from collections.abc import Mapping

from atoll.errors import LimitExceeded
from atoll.model.accounts import GROUP, PASSWD, with_account, with_group
from atoll.model.sandbox import HOSTS, NETWORK_FILES
from atoll.node.images.tree import Directory, File, ImageTree, Link

# Each of these is mounted by itself.
_MOST_OUTER = 100
_MOUNTED = ((), ("opt",), ("home",))
_ACCOUNT_BYTES = 1 << 20


def furnish(tree: ImageTree, layers: Mapping[int, int], layer: int) -> None:
    """Add the sandbox's user and what its network is told by; `layer` is above all others.

    Raises:
        LimitExceeded: the root itself is fuller than can be mounted.
    """
    for path in _MOUNTED:
        folder = tree.find(*path)
        if isinstance(folder, Directory) and len(folder.children) > _MOST_OUTER:
            raise LimitExceeded(
                f"the image has {len(folder.children)} entries in /{'/'.join(path)}, the most is {_MOST_OUTER}",
                limit=_MOST_OUTER,
            )
    passwd, group = (_read(tree, layers, name) for name in ("passwd", "group"))
    _put_text(tree, layer, "etc/passwd", with_account(passwd or PASSWD, shell_of(tree)))
    _put_text(tree, layer, "etc/group", with_group(group or GROUP))
    # A sandbox with names of its own has another directory mounted over this one.
    hosts = f"{NETWORK_FILES}/hosts"
    _put_text(tree, layer, hosts.lstrip("/"), HOSTS)
    tree.put("etc/hosts", Link(layer, hosts))
    _put_text(tree, layer, "etc/resolv.conf", "# no network\n")
    tree.put("etc/mtab", Link(layer, "/proc/self/mounts"))
    if isinstance(tree.find("var"), Directory):
        tree.put("var/tmp", Link(layer, "/tmp"))


def shell_of(tree: ImageTree) -> str:
    """Return the shell that a person is to have."""
    places = (("bin", "bash"), ("usr", "bin", "bash"))
    return "/bin/bash" if any(tree.find(*place) is not None for place in places) else "/bin/sh"


def _read(tree: ImageTree, layers: Mapping[int, int], name: str) -> str:
    file = tree.find("etc", name)
    if not isinstance(file, File) or file.size > _ACCOUNT_BYTES:
        return ""
    return tree.read(file, layers).decode("utf-8", "replace")


def _put_text(tree: ImageTree, layer: int, path: str, text: str) -> None:
    data = text.encode()
    tree.put(path, File(layer, 0o644, len(data), data=data))
