"""Command lines, read by the standard library's parser in our own words."""

from __future__ import annotations

from argparse import ArgumentParser, HelpFormatter
from typing import NoReturn

from atoll.errors import InvalidRequest


class Misuse(InvalidRequest):
    """A command line that cannot be meant; nothing was started."""


class Parser(ArgumentParser):
    """Reads the arguments of one command; options are written in full."""

    def __init__(self, usage: str, description: str) -> None:
        # An abbreviation that works today would change its meaning with the next option.
        super().__init__(
            usage=usage, description=description, allow_abbrev=False, formatter_class=_Help
        )

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong instead of printing it and leaving."""
        raise Misuse(message)


class _Help(HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)
