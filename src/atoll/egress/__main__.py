"""The proxy process: `python -m atoll.egress CONTROL PARENT [UID]`, started by the node's door and by nobody else.

CONTROL and PARENT are descriptors: the control socket, and a pidfd of the node, with either of which it ends. Before it hears
anything it gives up what it does not need: environment, privileges, new processes, files to write.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import resource
import socket
import sys
from importlib.util import find_spec

from atoll.egress.proxy import Proxy
from atoll.egress.resolver import Resolver

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_MOST_DESCRIPTORS = 65_536


def main(arguments: list[str]) -> int:
    control, parent, *uid = map(int, arguments)
    _load_all()
    os.environ.clear()
    os.umask(0o077)
    give_up_privileges(uid[0] if uid else None)
    # Threads come after the privileges, which each thread has to itself, and before the end of new ones.
    resolver = Resolver()
    # What was loaded stays; looking through it again and again would cost every request.
    gc.freeze()
    descriptors = limit_resources()
    with socket.socket(fileno=control) as channel:
        asyncio.run(_serve(channel, parent, resolver, descriptors))
    # A thread may still wait for a name server; nobody waits for the answer.
    os._exit(0)


def give_up_privileges(uid: int | None) -> None:
    """Become `uid` and nothing else, never to gain anything again."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        if os.getresuid() != (uid, uid, uid) or os.getresgid() != (uid, uid, uid):
            raise OSError("the proxy could not give up its privileges")
    library = ctypes.CDLL(None, use_errno=True)
    # Others of this user must not look into its memory, where secrets pass through.
    for option, value in ((_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_DUMPABLE, 0)):
        if library.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def limit_resources() -> int:
    """Allow no new processes, no core file, no writing of files; return how many descriptors there may be."""
    for limit in (resource.RLIMIT_NPROC, resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def _load_all() -> None:
    """Load what is loaded late otherwise: afterwards its files may not be readable any more."""
    import encodings.idna  # noqa: F401

    if find_spec("cryptography"):
        import atoll.egress.authority  # noqa: F401
    if find_spec("dns"):
        import dns.asyncbackend
        import dns.asyncresolver
        import dns.nameserver

        dns.asyncbackend.get_backend("asyncio")


async def _serve(channel: socket.socket, parent: int, resolver: Resolver, descriptors: int) -> None:
    loop = asyncio.get_running_loop()
    serving = asyncio.create_task(Proxy(channel, resolver, descriptors).run())
    # A copy of the node, made by fork, may hold the control socket open when the node itself is gone.
    loop.add_reader(parent, serving.cancel)
    try:
        await serving
    except asyncio.CancelledError:
        pass
    finally:
        loop.remove_reader(parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
