"""A program full of words that nobody inside may know: `secretive_host.py WORD`, the others in its environment.

It has one sandbox keep a word of its own, lets another look for all of them, and prints what that one found.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

from atoll import Sandbox
from tests.security.guest import parse_findings
from tests.security.sessions import attack_cell, put_attacks

# Shorter ones are found everywhere by chance.
_SHORTEST = 8


def main() -> None:
    """Keep, let search, and print."""
    foreign = {f"neighbour's {place}": os.urandom(16).hex() for place in ("code", "file", "env")}
    in_code, in_file, in_env = foreign.values()
    words = {**own_words(), **foreign}
    sought = {label: halves(word) for label, word in words.items() if len(word) >= _SHORTEST}
    with Sandbox(envs={"SECRET": in_env}) as neighbour:
        neighbour.run_code(f"secret = {in_code!r}").check()
        neighbour.files.write("secret", in_file)
        neighbour.run_code("read = open('secret').read()").check()
        print(json.dumps({"sought": sorted(sought), **search(sought)}))


def own_words() -> dict[str, str]:
    """Return what this program knows, by where it has it."""
    return {
        "argument": sys.argv[1],
        "environment": os.environ["SECRET"],
        "variable": os.urandom(16).hex(),
        "file": Path.home().joinpath("secret").read_text(),
        "home": str(Path.home()),
        "user": os.environ["USER"],
        "data directory": os.environ["ATOLL_DATA"],
        "folder": str(Path.cwd()),
        "host": socket.gethostname(),
    }


def search(sought: dict[str, tuple[str, str]]) -> dict[str, object]:
    """Let kernels of three births look; then one that was told a word."""
    with Sandbox() as sandbox:
        put_attacks(sandbox, "search_memory", "leaks")
        born = look(sandbox, sought)
        sandbox.restart()
        joined = look(sandbox, sought)
        sandbox.run_code("import os\nos._exit(1)")
        replaced = look(sandbox, sought)
        first, second = sought["variable"]
        sandbox.run_code(f"known = ''.join(({first!r}, {second!r}))").check()
        control = look(sandbox, sought)
    return {"born": born, "joined": joined, "replaced": replaced, "control": control}


def look(sandbox: Sandbox, sought: dict[str, tuple[str, str]]) -> dict[str, object]:
    """Return what one kernel finds."""
    cell = sandbox.run_code(attack_cell("search_memory", words=sought)).check()
    return parse_findings(cell.stdout.encode())


def halves(word: str) -> tuple[str, str]:
    """Return a word in two parts, neither of which says much."""
    middle = len(word) // 2
    return word[:middle], word[middle:]


if __name__ == "__main__":
    main()
