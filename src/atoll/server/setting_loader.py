"""Reads settings once: environment before `.env` before TOML before defaults; what is wrong stops the start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from atoll.client.places import data_directory
from atoll.errors import InvalidRequest
from atoll.server.setting_aliases import ALIASES
from atoll.server.setting_sources import (
    PREFIX,
    Given,
    SettingPath,
    Variables,
    read_env_file,
    read_environment,
    read_toml,
    variable_name,
)
from atoll.server.settings import Settings, every_setting, is_secret

# Variables of the same prefix that other parts read.
_NOT_OURS = {"ATOLL_DEBUG", "ATOLL_TOKEN", "ATOLL_URL"}
_FIELDS = dict(every_setting())
_BY_VARIABLE = {variable_name(path): path for path in _FIELDS}
_BY_NAME = {".".join(path): path for path in _FIELDS}
_SECRETS = {path for path, field in _FIELDS.items() if is_secret(field)}
# In a file of ours a name that is so like a known one is that one misspelt.
_ALIKE = 0.85

Choices = dict[SettingPath, Given]


def load_settings(
    environ: Mapping[str, str],
    config_dir: Path,
    config_file: Path | None = None,
    env_file: Path | None = None,
) -> Settings:
    """Return the settings that hold; the files are looked for in `config_dir` unless they are named.

    Raises:
        InvalidRequest: something is unknown, impossible or unreadable; the message names its place.
    """
    environment = read_environment(environ)
    file = _file_to_read(env_file, config_dir / ".env")
    dotenv = read_env_file(file) if file else Variables({}, str)
    file = _file_to_read(config_file, config_dir / "atoll.toml")
    choices: Choices = dict(_from_toml(file)) if file else {}
    choices |= dict(_from_variables(dotenv, _is_meant_in_file))
    choices |= dict(_from_variables(environment, _is_meant))
    warnings = _add_aliases(choices, {**_aliases(dotenv), **_aliases(environment)})
    return _validate(choices, data_directory(environ)).with_warnings(warnings)


def _file_to_read(asked: Path | None, usual: Path) -> Path | None:
    if asked is not None:
        return asked
    try:
        usual.lstat()
    except FileNotFoundError:
        return None
    except OSError:
        pass  # whoever reads it says what is wrong: a policy that cannot be read is not left out
    return usual


def _from_toml(file: Path) -> Iterator[tuple[SettingPath, Given]]:
    for path, given in read_toml(file):
        if path in _FIELDS:
            yield path, given
        elif not _is_empty_group(path, given):
            raise _unknown(given, _BY_NAME)


def _is_empty_group(path: SettingPath, given: Given) -> bool:
    return given.value == {} and any(path == each[:-1] for each in _FIELDS)


def _from_variables(
    variables: Variables, is_meant: Callable[[str], bool]
) -> Iterator[tuple[SettingPath, Given]]:
    for name in variables.values:
        if name in _BY_VARIABLE:
            given = variables.given(name)
            _refuse_empty(given)
            yield _BY_VARIABLE[name], given
        elif name not in ALIASES and name not in _NOT_OURS and is_meant(name):
            raise _unknown(variables.given(name), (*_BY_VARIABLE, *ALIASES))


def _is_meant(name: str) -> bool:
    return name.upper().startswith(PREFIX)


def _is_meant_in_file(name: str) -> bool:
    known = (*_BY_VARIABLE, *ALIASES)
    return _is_meant(name) or bool(get_close_matches(name.upper(), known, 1, _ALIKE))


def _unknown(given: Given, known: Iterable[str]) -> InvalidRequest:
    # Without the value: it may be the secret of a misspelt setting.
    return given.refuse(f"there is no such setting{_hint(given.name, list(known))}", show=False)


def _hint(name: str, known: list[str]) -> str:
    key = name.lower().rpartition(".")[2]
    elsewhere = [each for each in known if each.endswith(f".{key}")]
    alike = (
        elsewhere or get_close_matches(name, known, 1) or get_close_matches(name.upper(), known, 1)
    )
    return f"; did you mean {alike[0]}?" if alike else ""


def _refuse_empty(given: Given) -> None:
    if given.value == "":
        raise given.refuse("it is empty; give it a value or leave it out", show=False)


def _aliases(variables: Variables) -> dict[str, Given]:
    return {name: variables.given(name) for name in ALIASES if name in variables.values}


def _add_aliases(choices: Choices, aliases: Mapping[str, Given]) -> list[str]:
    """Add what is set by foreign names only; return a warning for each that sets nothing, or that our own name overrules."""
    warnings = []
    added: Choices = {}
    for name, given in aliases.items():
        _refuse_empty(given)
        if not ALIASES[name].settings:
            warnings.append(f"{given.place()}: {name} is not used: {ALIASES[name].note}")
        for path in ALIASES[name].settings:
            if own := choices.get(path):
                warnings.append(
                    f"{given.place()}: {name} is not used: {own.name} is set, too ({own.place()})"
                )
            elif (other := added.get(path)) and other.value != given.value:
                raise given.refuse(f"{other.name} is set to something else; leave one of both out")
            else:
                added[path] = given
    choices |= added
    return warnings


def _validate(choices: Choices, default_data: Path) -> Settings:
    tree: dict[str, Any] = {"data": default_data}
    for path, given in choices.items():
        place = tree
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = _our_value(given)
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        problems = [_describe(each, choices) for each in error.errors(include_url=False)]
    # Outside of the handler: the foreign error would bring all values along.
    raise InvalidRequest("\n".join(problems))


def _our_value(given: Given) -> object:
    if given.name not in ALIASES or not isinstance(given.value, str):
        return given.value
    try:
        return ALIASES[given.name].convert(given.value)
    except InvalidRequest as error:
        raise given.refuse(error.message) from None


def _describe(error: ErrorDetails, choices: Choices) -> str:
    cause = error.get("ctx", {}).get("error")
    reason = str(cause) if cause else error["msg"].replace("Input", "it", 1)
    loc = tuple(str(key) for key in error["loc"])
    path = loc + _blamed(cause)
    if given := choices.get(path):
        return given.refuse(reason, show=path not in _SECRETS).message
    # Settings that do not go together, or with a default.
    group = [each for path, each in choices.items() if loc and path[: len(loc)] == loc]
    places = "; ".join(f"{each.place()}: {each.name}" for each in group)
    return f"{places or 'the defaults'}: {reason}"


def _blamed(cause: object) -> SettingPath:
    """Return which of several settings an error is about, if it says so."""
    details = cause.details if isinstance(cause, InvalidRequest) else {}
    name = details.get("setting") or details.get("limit")
    return tuple(name.split(".")) if name else ()
