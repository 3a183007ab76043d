"""The `atoll` command: finds the command, turns errors into messages and exit codes.

`atoll run` has to be quick from cold, so only the module of the command that was called is loaded, and
arguments are read by the standard library's parser: it takes 10 ms where larger ones take 50 to 130.
"""

from __future__ import annotations

import gc
import io
import os
import select
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn, Protocol, cast

from atoll.cli.arguments import Misuse, Parser
from atoll.cli.messages import complain, describe_error

COMMANDS = (
    *("run", "repl", "shell", "up", "doctor", "version"),
    *("node", "create", "ls", "exec", "logs", "cp", "pause", "stop", "resume", "rm"),
    *("workspace", "egress", "secret"),
    *("template", "create-image", "token", "user"),
)

# Our own exit codes; all others are the program's. Container tools use 125 in the same sense.
MISUSED, FAILED, INTERRUPTED, BROKEN_PIPE = 2, 125, 130, 141


class CommandModule(Protocol):
    """What the module of each command offers."""

    USAGE: str
    SUMMARY: str
    DETAILS: str

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        """Say what the command takes."""

    @staticmethod
    def execute(options: Namespace) -> int:
        """Do it and return the exit code."""


def main() -> NoReturn:
    """Run this process's command line, and leave."""
    # Until all is loaded there is nothing to collect; looking for it takes 5 ms of a cold start.
    gc.disable()
    _prepare_streams()
    code = run_command_line(sys.argv[1:])
    # Taking the interpreter apart takes 10 ms, and everything that has an end has come to it by now.
    _flush()
    os._exit(code)


def _prepare_streams() -> None:
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # Otherwise the next thing opened would take its place, and be handed to the program inside.
            os.open(os.devnull, os.O_RDWR)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a character is no reason to fail.
        sys.stdout.reconfigure(errors="replace")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, AttributeError, ValueError):
            # Closed, or its reader has gone: there is nobody left to tell.
            continue


def run_command_line(words: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    name = words[0] if words else "--help"
    try:
        return _call(name, words[1:])
    except Misuse as error:
        complain(error.message, f"atoll {name} --help" if name in COMMANDS else "atoll --help")
        return MISUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last one who can turn it into words
        if isinstance(error, BrokenPipeError) and _reader_has_gone():
            # As in `| head`: end as the kernel would have ended us.
            return BROKEN_PIPE
        complain(*describe_error(error))
        return FAILED


def _reader_has_gone() -> bool:
    # Other pipes can break, too, and must not be mistaken for ours.
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _call(name: str, words: Sequence[str]) -> int:
    if name in ("--help", "-h", "help"):
        _print_help()
        return 0
    if name in ("--version", "-V"):
        name = "version"
    if name not in COMMANDS:
        raise Misuse(f"there is no command {name!r}{_suggestion(name)}")
    command = _load(name)
    description = f"{command.SUMMARY} {command.DETAILS}".strip()
    parser = Parser(f"atoll {name} {command.USAGE}", description)
    command.add_arguments(parser)
    return command.execute(parser.parse_args(words))


def _load(name: str) -> CommandModule:
    return cast(CommandModule, import_module(f"atoll.cli.{name.replace('-', '_')}"))


def _print_help() -> None:
    print("usage: atoll COMMAND …\n\nRun code that nobody vouches for in a sealed sandbox.\n")
    for name in COMMANDS:
        print(f"  {name:<12} {_load(name).SUMMARY}")
    print("\n'atoll COMMAND --help' tells more.")
    sys.stdout.flush()


def _suggestion(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
