"""The archives of packages that apt is configured for on this machine, written anew so that a sandbox's apt finds and trusts them.

Inside there is no root, so that nothing is installed into the system; lists are fetched and packages downloaded, as any user may.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from atoll.model.sandbox import NETWORK_FILES

_SOURCES, _KEY = "apt.sources", "apt-key-{}{}"
_ONE_LINE = re.compile(
    r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uris>\S+)\s+(?P<suites>\S+)(?P<components>.*)"
)
# Fields that sandboxes are told besides where the archive is, and what they are called within one line.
_OPTIONS = {"architectures": "arch", "trusted": "trusted", "check-valid-until": "check-valid-until"}
_SETTING = re.compile(r'^Acquire::Check-Valid-Until "([^"]*)";$', re.MULTILINE | re.IGNORECASE)
_PUBLIC_KEY = b"-----BEGIN PGP PUBLIC KEY BLOCK-----"
# How a public key begins that is not written in letters (RFC 9580, packet type 6).
_PUBLIC_PACKETS = (b"\x98", b"\x99", b"\xc6")
_LARGEST_FILE = 4 << 20
# Nothing here is root's: apt makes these below /tmp, and keeps lists as they come, which is smaller.
_CONFIG = f"""Dir::Etc::sourcelist "{NETWORK_FILES}/{_SOURCES}";
Dir::Etc::sourceparts "/dev/null";
Dir::State "/tmp/apt";
Dir::State::status "/dev/null";
Dir::Cache "/tmp/apt";
Dir::Log "/tmp/apt";
Acquire::GzipIndexes "true";
Acquire::Languages "none";
"""


@dataclass(frozen=True, slots=True)
class AptSources:
    """Where apt gets packages, and what a sandbox's needs to do so."""

    urls: Sequence[str] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)  # by their names in `NETWORK_FILES`
    config: bytes = b""


@dataclass(frozen=True, slots=True)
class _Archive:
    """One entry of a list of sources: its fields in small letters."""

    fields: Mapping[str, str]

    @property
    def urls(self) -> Sequence[str]:
        return [url for url in self.fields.get("uris", "").split() if _is_open(url)]

    @property
    def is_used(self) -> bool:
        said = self.fields.get("enabled", "yes").lower()
        kinds = self.fields.get("types", "").split()
        return "deb" in kinds and said not in ("no", "false", "off", "0") and bool(self.urls)


def read_apt_sources(root: Path, settings: str) -> AptSources:
    """Read apt's lists of sources; `settings` is what `apt-config dump Acquire` prints."""
    archives = [each for each in _read_archives(root / "etc/apt") if each.is_used]
    if not archives:
        return AptSources()
    keys = _Keys(root)
    text = "\n".join(_render(archive, keys) for archive in archives)
    valid = _SETTING.search(settings)
    config = _CONFIG + (f'Acquire::Check-Valid-Until "{valid[1]}";\n' if valid else "")
    urls = dict.fromkeys(url for archive in archives for url in archive.urls)
    files = {_SOURCES: text.encode(), **keys.files}
    return AptSources(list(urls), files, config.encode())


def _is_open(url: str) -> bool:
    """Whether it is on the web, and holds no credentials that would enter a sandbox."""
    return url.startswith(("http://", "https://")) and "@" not in urlsplit(url).netloc


def _read_archives(folder: Path) -> Iterator[_Archive]:
    parts = folder / "sources.list.d"
    for path in (folder / "sources.list", *sorted(parts.glob("*.list"))):
        yield from _parse_lines(_read(path).decode("utf-8", "replace"))
    for path in sorted(parts.glob("*.sources")):
        yield from _parse_stanzas(_read(path).decode("utf-8", "replace"))


def _parse_lines(text: str) -> Iterator[_Archive]:
    for line in text.splitlines():
        found = _ONE_LINE.fullmatch(line.partition("#")[0].strip())
        if found is None:
            continue
        words = (found["options"] or "").split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        named = {name: options[short] for name, short in _OPTIONS.items() if short in options}
        yield _Archive(
            {
                "types": "deb",
                **{name: found[name].strip() for name in ("uris", "suites", "components")},
                **{name: text.replace(",", " ") for name, text in named.items()},
                "signed-by": options.get("signed-by", ""),
            }
        )


def _parse_stanzas(text: str) -> Iterator[_Archive]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n\s*\n", "\n".join(lines)):
        whole = re.findall(r"^([\w-]+):(.*(?:\n[ \t].*)*)", stanza, re.MULTILINE)
        yield _Archive({name.lower(): value.strip() for name, value in whole})


class _Keys:
    """The public keys that archives are signed with; those that a sandbox does not see get a file of its own."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.files: dict[str, bytes] = {}

    def paths(self, named: str) -> Sequence[str]:
        """Return where a sandbox finds these keys, or all that apt trusts if none are named."""
        texts = [text for text in re.split(r"[\s,]+", named) if text.startswith("/")]
        paths = [self._root / text.lstrip("/") for text in texts] or self._trusted()
        return [found for path in paths if (found := self._place(path)) is not None]

    def _trusted(self) -> Sequence[Path]:
        folder = self._root / "etc/apt"
        parts = sorted((folder / "trusted.gpg.d").glob("*"))
        return [*parts, folder / "trusted.gpg"]

    def _place(self, path: Path) -> str | None:
        below = path.relative_to(self._root)
        content = _read(path)
        if not content.startswith(_PUBLIC_PACKETS) and _PUBLIC_KEY not in content:
            return None
        if below.parts[0] == "usr":
            return f"/{below}"  # which sandboxes share
        for name, known in self.files.items():
            if known == content:
                return f"{NETWORK_FILES}/{name}"
        suffix = ".asc" if _PUBLIC_KEY in content else ".gpg"
        name = _KEY.format(len(self.files), suffix)
        self.files[name] = content
        return f"{NETWORK_FILES}/{name}"


def _render(archive: _Archive, keys: _Keys) -> str:
    fields = archive.fields
    signed = fields.get("signed-by", "")
    # A key may stand there itself; its lines are indented already.
    own_key = _PUBLIC_KEY.decode() in signed
    lines = {
        "Types": "deb",
        "URIs": " ".join(archive.urls),
        "Suites": fields.get("suites", ""),
        "Components": fields.get("components", ""),
        **{name.title(): fields.get(name, "") for name in _OPTIONS},
        "Signed-By": "" if own_key else " ".join(keys.paths(signed)),
    }
    text = "".join(f"{name}: {value}\n" for name, value in lines.items() if value)
    return f"{text}Signed-By:\n {signed}\n" if own_key else text


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_FILE)
    except OSError:
        return b""  # none there, or none of ours
