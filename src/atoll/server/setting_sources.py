"""Where settings are written: the environment, a `.env` file and a TOML file, each value with its place."""

from __future__ import annotations

import io
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dotenv.parser import Binding, parse_stream

from atoll.errors import InvalidRequest

PREFIX = "ATOLL_"
SettingPath = tuple[str, ...]

# A line is found by reading the file again and again, which a larger file would make slow.
_LARGEST_FILE = 64 << 10
_AT_LINE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


@dataclass(frozen=True, slots=True)
class Given:
    """One value that somebody wrote, under the name and in the place where he did."""

    name: str
    value: object
    place: Callable[[], str]

    def refuse(self, reason: str, show: bool = True) -> InvalidRequest:
        """Return the error that names the place, the name, the value if it may be shown, and the reason."""
        value = f" is {repr(self.value)[:80]}" if show else ""
        return InvalidRequest(f"{self.place()}: {self.name}{value}: {reason}", setting=self.name)


@dataclass(frozen=True, slots=True)
class Variables:
    """The variables of one source by name, and where they stand."""

    values: Mapping[str, str]
    place: Callable[[str], str]

    def given(self, name: str) -> Given:
        """Return the value of `name` with its place."""
        return Given(name, self.values[name], lambda: self.place(name))


def variable_name(path: SettingPath) -> str:
    """Return the variable that sets `path`."""
    return PREFIX + "__".join(path).upper()


def read_environment(environ: Mapping[str, str]) -> Variables:
    """Return the variables of an environment."""
    return Variables(environ, lambda name: "the environment")


def read_env_file(file: Path) -> Variables:
    """Return the variables of a `.env` file; raise `InvalidRequest` for a line that is none."""
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    for binding in parse_stream(io.StringIO(_read_text(file))):
        line = _line_of(binding)
        if binding.error or (binding.key and binding.value is None):
            raise _unreadable(file, line, "write NAME=value, and close every quote")
        if binding.key is None or binding.value is None:
            continue
        if binding.key in lines:
            raise _unreadable(
                file, line, f"{binding.key} stands in line {lines[binding.key]} already"
            )
        values[binding.key], lines[binding.key] = binding.value, line
    return Variables(values, lambda name: f"{file}, line {lines[name]}")


def _line_of(binding: Binding) -> int:
    # The parser counts empty lines in front of a variable as part of it.
    text = binding.original.string
    blank = text[: len(text) - len(text.lstrip())]
    return binding.original.line + blank.count("\n")


def read_toml(file: Path) -> Iterator[tuple[SettingPath, Given]]:
    """Yield all values of a TOML file; raise `InvalidRequest` if it is none."""
    text = _read_text(file)
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _toml_error(file, text, str(error)) from None
    except RecursionError:
        raise _unreadable(file, text.count("\n"), "values are nested too deeply") from None
    for path, value in _leaves(tree):
        yield path, Given(".".join(path), value, _place_in_toml(file, text, path))


def _place_in_toml(file: Path, text: str, path: SettingPath) -> Callable[[], str]:
    return lambda: f"{file}, line {_find_line(text, path)}"


def _leaves(
    tree: Mapping[str, object], above: SettingPath = ()
) -> Iterator[tuple[SettingPath, object]]:
    for key, value in tree.items():
        path = (*above, key)
        if isinstance(value, dict) and value:
            yield from _leaves(value, path)
        else:
            yield path, value


def _find_line(text: str, path: SettingPath) -> int:
    """Return the line in which `path` gets its value: with it, the file's beginning has one for the first time."""
    lines = text.splitlines(keepends=True)
    for number in range(1, len(lines)):
        try:
            beginning = tomllib.loads("".join(lines[:number]))
        except tomllib.TOMLDecodeError:
            continue  # it ends inside a value
        if _holds(beginning, path):
            return number
    return len(lines)


def _holds(tree: object, path: Sequence[str]) -> bool:
    for key in path:
        if not isinstance(tree, dict) or key not in tree:
            return False
        tree = tree[key]
    return True


def _toml_error(file: Path, text: str, message: str) -> InvalidRequest:
    match = _AT_LINE.search(message)
    line = int(match[1]) if match and match[1] else max(1, len(text.splitlines()))
    return _unreadable(file, line, _AT_LINE.sub("", message))


def _read_text(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InvalidRequest(
            f"{file} cannot be read: {error.strerror}; set it right or leave it out",
            source=str(file),
        ) from error
    if len(data) > _LARGEST_FILE:
        line = data.count(b"\n", 0, _LARGEST_FILE) + 1
        raise _unreadable(file, line, f"the file is larger than {_LARGEST_FILE >> 10} KiB")
    return _decode(file, data)


def _decode(file: Path, data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _unreadable(file, line, "this is not UTF-8") from None
    # What is left of a number after a cut is a number, too, and may allow more than the whole.
    if text and not text.endswith("\n"):
        line = text.count("\n") + 1
        raise _unreadable(file, line, "the last line is not ended; is the file cut off?")
    return text


def _unreadable(file: Path, line: int, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{file}, line {line}: {reason}", source=str(file), line=line)
