"""The programs that a fake sandbox has: as much of each as tests need."""

from __future__ import annotations

import errno
import re
import signal as signals
from collections.abc import Iterator, Mapping
from itertools import chain
from types import MappingProxyType

import anyio

from atoll.testing.fake.processes import InnerProcess, Program, to_bytes
from atoll.testing.fake.shell import run_shell
from atoll.testing.fake.tree import Directory, File, Link, Special, os_error


async def _true(me: InnerProcess) -> int:
    return 0


async def _false(me: InnerProcess) -> int:
    return 1


async def _echo(me: InnerProcess) -> int:
    words = list(me.argv[1:])
    line_end = "\n"
    if words[:1] == ["-n"]:
        words, line_end = words[1:], ""
    await me.write(" ".join(words) + line_end)
    return 0


_ESCAPE = re.compile(rb"\\([0-7]{1,3}|[nrt\\])|%(s|d|%)")
_LETTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\"}


async def _printf(me: InnerProcess) -> int:
    words = [to_bytes(word) for word in me.argv[2:]]

    def replace(match: re.Match[bytes]) -> bytes:
        if match[2]:
            return b"%" if match[2] == b"%" else (words.pop(0) if words else b"")
        return _LETTERS.get(match[1]) or bytes([int(match[1], 8) & 0xFF])

    await me.write(_ESCAPE.sub(replace, to_bytes(me.argv[1])))
    return 0


async def _cat(me: InnerProcess) -> int:
    for path in me.argv[1:] or ["-"]:
        channel = me.channels[0] if path == "-" else me.open(path)
        while data := await channel.read(64 * 1024):
            await me.write(data)
    return 0


async def _head(me: InnerProcess) -> int:
    """`head -c COUNT [FILE]`."""
    rest = int(me.argv[2])
    channel = me.open(me.argv[3]) if len(me.argv) > 3 else me.channels[0]
    while rest and (data := await channel.read(min(rest, 64 * 1024))):
        rest -= len(data)
        await me.write(data)
    return 0


async def _sleep(me: InnerProcess) -> int:
    await me.sleep(float(me.argv[1]))
    return 0


async def _env(me: InnerProcess) -> int:
    await me.write("".join(f"{name}={value}\n" for name, value in me.env.items()))
    return 0


async def _pwd(me: InnerProcess) -> int:
    await me.write(me.cwd + "\n")
    return 0


async def _test(me: InnerProcess) -> int:
    """`test -e|-f|-d|-L|-p|-s FILE`, `test -t N`."""
    option, word = me.argv[1], me.argv[2]
    if option == "-t":
        return 0 if me.channels[int(word)] is me.terminal else 1
    try:
        node = me.tree.find(word, cwd=me.cwd, follow=option != "-L").existing()
    except OSError:
        return 1
    kinds = {"-f": File, "-d": Directory, "-L": Link, "-p": Special}
    if option in kinds:
        return 0 if isinstance(node, kinds[option]) else 1
    return 0 if option == "-e" or node.size else 1


async def _mkdir(me: InnerProcess) -> int:
    with_parents = "-p" in me.argv
    wanted = [path for path in me.argv[1:] if path != "-p"]
    for path in chain.from_iterable(map(_way, wanted)) if with_parents else wanted:
        place = me.tree.find(path, cwd=me.cwd)
        if place.node is None:
            me.tree.add(place, Directory(place.directory.volume, 0o755))
        elif not with_parents:
            raise os_error(errno.EEXIST, path)
    return 0


def _way(path: str) -> Iterator[str]:
    """Yield every directory on the way to a path, and the path itself."""
    names = path.rstrip("/").split("/")
    for count in range(1, len(names) + 1):
        if way := "/".join(names[:count]):
            yield way


async def _ln(me: InnerProcess) -> int:
    """`ln -s TARGET NAME`."""
    place = me.tree.find(me.argv[3], cwd=me.cwd, follow=False)
    if place.node is not None:
        raise os_error(errno.EEXIST, me.argv[3])
    me.tree.add(place, Link(place.directory.volume, 0o777, target=me.argv[2]))
    return 0


async def _mkfifo(me: InnerProcess) -> int:
    place = me.tree.find(me.argv[1], cwd=me.cwd)
    if place.node is not None:
        raise os_error(errno.EEXIST, me.argv[1])
    me.tree.add(place, Special(place.directory.volume, 0o644))
    return 0


async def _touch(me: InnerProcess) -> int:
    for path in me.argv[1:]:
        me.open_to_write(path, append=True)
    return 0


async def _rm(me: InnerProcess) -> int:
    """`rm FILE…`, `rm -r TREE…`."""
    for path in me.argv[1:]:
        if path.startswith("-"):
            continue
        place = me.tree.find(path, cwd=me.cwd, follow=False)
        if isinstance(place.existing(), Directory) and "-r" not in me.argv:
            raise os_error(errno.EISDIR, path)
        me.tree.remove(place)
    return 0


async def _chmod(me: InnerProcess) -> int:
    """`chmod OCTAL FILE`."""
    me.tree.find(me.argv[2], cwd=me.cwd).existing().mode = int(me.argv[1], 8)
    return 0


async def _setsid(me: InnerProcess) -> int:
    """`setsid COMMAND…`: leave the group, then become the command."""
    me.group = me.pid
    return await me.become(me.argv[1:])


async def _tty(me: InnerProcess) -> int:
    await me.write("/dev/pts/0\n" if me.terminal else "not a tty\n")
    return 0 if me.terminal else 1


async def _stty(me: InnerProcess) -> int:
    """`stty size`."""
    if me.terminal is None:
        await me.complain("standard input is not a terminal")
        return 1
    await me.write(f"{me.terminal.size.rows} {me.terminal.size.columns}\n")
    return 0


async def _stubborn(me: InnerProcess) -> int:
    """Say that it is there, then ignore every signal that can be ignored."""
    me.ignored |= set(signals.Signals)
    await me.write("ready\n")
    await anyio.sleep_forever()
    return 0


PROGRAMS: Mapping[str, Program] = MappingProxyType(
    {
        "true": _true,
        "false": _false,
        "echo": _echo,
        "printf": _printf,
        "cat": _cat,
        "head": _head,
        "sleep": _sleep,
        "env": _env,
        "pwd": _pwd,
        "test": _test,
        "mkdir": _mkdir,
        "ln": _ln,
        "mkfifo": _mkfifo,
        "touch": _touch,
        "rm": _rm,
        "chmod": _chmod,
        "setsid": _setsid,
        "tty": _tty,
        "stty": _stty,
        "stubborn": _stubborn,
        "sh": run_shell,
        "bash": run_shell,
    }
)
