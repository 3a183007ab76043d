"""Damaged configuration: the same settings or a refusal that names a line, never a weaker policy.

What no reader can tell from an operator's wish is left out: another sound value, whole lines that are gone, lines that are comments.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from atoll.errors import InvalidRequest
from atoll.server.setting_loader import load_settings
from atoll.server.settings import Settings
from tests.campaigns import Campaign

pytestmark = pytest.mark.any_user

TOML = """\
# A careful operator's node.
data = "/srv/atoll"

[node]
engine = "namespaces"
on_exit = "stop"
lease_seconds = 30
history_days = 7

[lifetimes]
lifetime_seconds = "20m"
idle_seconds = "90s"
most_lifetime_seconds = "1h"

[quotas]
most_sandboxes = 100
most_per_owner = 5
reserve_bytes = "2GiB"

[limits] # tight
memory_bytes = "256m"
cpus = 0.5
processes = 64
open_files = 256
enforcement = "strict"

[execution]
timeout_seconds = 60
most_timeout_seconds = 120
log_bytes = "8MB"
on_disconnect = "cancel"

[store]
url = "postgresql://atoll@localhost/atoll"

[log]
level = "warning"
"""

DOTENV = """\
# A careful operator's node.
ATOLL_DATA=/srv/atoll
ATOLL_NODE__ON_EXIT="stop"
ATOLL_QUOTAS__MOST_SANDBOXES=100

ATOLL_QUOTAS__RESERVE_BYTES='2GiB'
export ATOLL_LIFETIMES__IDLE_SECONDS=90s # soon
CONTAINER_MEMORY_LIMIT=256m
SANDBOX_CPU="0.5"
DEFAULT_PIDS_LIMIT=64
SESSION_MAX_LIFETIME_SECONDS='1200'
CONTAINER_EXECUTION_TIMEOUT_SECONDS=60
"""

Damage = Callable[[Random, list[str]], str]


def settings_lines(lines: list[str]) -> list[int]:
    return [place for place, line in enumerate(lines) if "=" in line]


def headings(lines: list[str]) -> list[int]:
    return [place for place, line in enumerate(lines) if line.startswith("[")]


def text_of(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def misspell(random: Random, word: str) -> str:
    """Return a word with one letter gone, doubled, changed, exchanged or in another case."""
    place = random.choice([place for place, each in enumerate(word) if each.isalpha()])
    before, letter, after = word[:place], word[place], word[place + 1 :]
    other = random.choice("qxz" if letter.islower() else "QXZ")
    changed = random.choice(["", letter * 2, other, letter.swapcase(), other + letter])
    return before + changed + after


def misspell_name(random: Random, lines: list[str]) -> str:
    place = random.choice(settings_lines(lines))
    name, equals, value = lines[place].partition("=")
    word = name.split()[-1]
    lines[place] = name.replace(word, misspell(random, word)) + equals + value
    return text_of(lines)


def misspell_heading(random: Random, lines: list[str]) -> str:
    place = random.choice(headings(lines))
    name = lines[place][1:].partition("]")[0]
    lines[place] = f"[{misspell(random, name)}]"
    return text_of(lines)


def lose_heading(random: Random, lines: list[str]) -> str:
    del lines[random.choice(headings(lines))]
    return text_of(lines)


def double_heading(random: Random, lines: list[str]) -> str:
    lines += ["", lines[random.choice(headings(lines))], ""]
    return text_of(lines)


def make_heading_a_list(random: Random, lines: list[str]) -> str:
    place = random.choice(headings(lines))
    lines[place] = f"[{lines[place].partition(']')[0]}]]"
    return text_of(lines)


def move_line(random: Random, lines: list[str]) -> str:
    """Move a line below the heading of another group."""
    place = random.choice(settings_lines(lines))
    own = max((heading for heading in headings(lines) if heading < place), default=-1)
    other = random.choice([heading for heading in headings(lines) if heading != own])
    lines.insert(other + 1, lines[place])
    del lines[place + (other < place)]
    return text_of(lines)


def put_impossible_value(random: Random, lines: list[str]) -> str:
    # Almost every text is a path.
    places = [place for place in settings_lines(lines) if "data" not in lines[place].lower()]
    place = random.choice(places)
    name = lines[place].partition("=")[0]
    lines[place] = f"{name}= {random.choice(IMPOSSIBLE)}"
    return text_of(lines)


IMPOSSIBLE = (
    *("true", "[]", "{}", "nan", "-inf", "-1", "-0.5", "1979-05-27", '""', '"lots"', "''"),
    *('"1 parsec"', "99999999999999999999999", "1e400", '"256 mm"', '"-1"', '"0x10"', '"1,5"'),
    *("[1]", '{ value = "1" }', "None", "null", "unlimited", '"unlimited"'),
)


def lose_equals(random: Random, lines: list[str]) -> str:
    place = random.choice(settings_lines(lines))
    lines[place] = lines[place].replace("=", " ", 1)
    return text_of(lines)


def lose_mark(random: Random, lines: list[str]) -> str:
    """Lose a quote or a bracket."""
    text = text_of(lines)
    places = [match.start() for match in re.finditer(r"[\"'\[\]]", text)]
    places = [place for place in places if "operator's" not in text[place - 9 : place + 2]]
    place = random.choice(places)
    return text[:place] + text[place + 1 :]


def double_line(random: Random, lines: list[str]) -> str:
    place = random.choice(settings_lines(lines))
    lines.insert(place, lines[place])
    return text_of(lines)


def join_lines(random: Random, lines: list[str]) -> str:
    places = [place for place in settings_lines(lines)[:-1] if "#" not in lines[place]]
    place = random.choice([place for place in places if "=" in lines[place + 1]])
    lines[place : place + 2] = [f"{lines[place]} {lines[place + 1]}"]
    return text_of(lines)


def cut(random: Random, lines: list[str]) -> str:
    text = text_of(lines)
    place = random.choice([place for place in range(1, len(text)) if text[place - 1] != "\n"])
    return text[:place]


def put_byte(random: Random, lines: list[str]) -> str:
    # As surrogates, so that they are written as the bytes they stand for.
    text, byte = text_of(lines), random.choice("\udcff\udcc3\udc80\x00\x1b\x07\x7f")
    place = random.randrange(len(text))
    return text[:place] + byte + text[place:]


def put_name_below_name(random: Random, lines: list[str]) -> str:
    place = random.choice(settings_lines(lines))
    name, equals, value = lines[place].partition("=")
    lines[place] = f"{name.strip()}.value {equals}{value}"
    return text_of(lines)


def add_unknown(random: Random, lines: list[str]) -> str:
    place = random.choice(settings_lines(lines))
    lines.insert(place, random.choice(["memory = '1g'", "ATOLL_UNLIMITED = 1", "a.b.c = 1"]))
    return text_of(lines)


def lose_underscore(random: Random, lines: list[str]) -> str:
    place = random.choice([place for place, line in enumerate(lines) if "__" in line])
    lines[place] = lines[place].replace("__", random.choice(["_", "___", ".", "-"]), 1)
    return text_of(lines)


IN_BOTH: tuple[Damage, ...] = (
    misspell_name,
    put_impossible_value,
    lose_equals,
    lose_mark,
    double_line,
    cut,
    put_byte,
)
IN_TOML: tuple[Damage, ...] = (
    *IN_BOTH,
    misspell_heading,
    lose_heading,
    double_heading,
    make_heading_a_list,
    move_line,
    join_lines,
    put_name_below_name,
    add_unknown,
)
IN_DOTENV: tuple[Damage, ...] = (*IN_BOTH, lose_underscore)


def load_damaged(file: Path, text: str) -> Settings | None:
    """Return the settings, or None if they are refused with one of the file's lines."""
    file.write_bytes(text.encode(errors="surrogateescape"))
    try:
        return load_settings({}, file.parent)
    except InvalidRequest as error:
        named = re.match(rf"{re.escape(str(file))}, line (\d+): ", error.message)
        assert named, f"{error.message}\n{text}"
        assert 1 <= int(named[1]) <= text.count("\n") + 1, f"{error.message}\n{text}"
        return None


@pytest.mark.parametrize(
    ("name", "sound", "damages"),
    [("atoll.toml", TOML, IN_TOML), (".env", DOTENV, IN_DOTENV)],
    ids=["toml", "dotenv"],
)
def test_damage_never_weakens_the_policy(
    tmp_path: Path, campaign: Campaign, name: str, sound: str, damages: tuple[Damage, ...]
) -> None:
    file = tmp_path / name
    whole = load_damaged(file, sound)
    assert whole
    refused = 0
    for number in range(campaign.count(200 * len(damages))):
        damage = damages[number % len(damages)]
        text = damage(campaign.random, sound.splitlines())
        settings = load_damaged(file, text)
        assert settings in (None, whole), f"{damage.__name__}:\n{text}"
        refused += settings is None
    assert refused


def test_a_wrong_character_touches_its_own_line_at_most(tmp_path: Path, campaign: Campaign) -> None:
    file = tmp_path / "atoll.toml"
    whole = load_damaged(file, TOML)
    assert whole
    for _ in range(campaign.count(2000)):
        place = campaign.random.randrange(len(TOML))
        character = campaign.random.choice("\n #=\"'[]{}.,_-019aezAZ\\\t")
        text = TOML[:place] + character + TOML[place + 1 :]
        settings = load_damaged(file, text)
        if settings is not None:
            line = TOML.count("\n", 0, place)
            near = "\n".join(TOML.splitlines()[line : line + 2])
            assert all(key in near for key in differing(settings, whole)), text


def differing(one: Settings, other: Settings) -> set[str]:
    """Return the names of settings that are not the same."""
    first, second = one.model_dump(), other.model_dump()
    return {
        key
        for group, values in first.items()
        for key in (values if isinstance(values, dict) else [group])
        if (values[key] if isinstance(values, dict) else values)
        != (second[group][key] if isinstance(values, dict) else second[group])
    }
