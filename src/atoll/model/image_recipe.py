"""The recipe of a container image: what is to be in it, checked, and the files that build it. Pure.

Whatever becomes part of a line of a Dockerfile is held to letters, digits and a few signs that no shell and no Dockerfile
takes for anything else; names with more freedom go into files of their own, which only package managers read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from atoll.errors import InvalidRequest
from atoll.model.image import RegistryImage, parse_image
from atoll.model.packages import parse_packages

RUNTIMES = ("node", "bun", "python")
FEATURES = ("artifacts", "playwright")
VERSIONED = ("node", "pnpm", "bun", "python", "uv", "playwright")
DOCKERFILE, IGNORE, MANIFEST = "Dockerfile", ".dockerignore", "atoll-image.json"
NODE_PACKAGES, PYTHON_PACKAGES = "package.json", "requirements.txt"
MADE_BY = "atoll create-image"
DEFAULT_BASE = "debian:bookworm-slim"

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_APT = re.compile(r"[a-z0-9][a-z0-9+.-]{1,62}(?:=[0-9][A-Za-z0-9.+:~-]{0,79})?")
_VERSION = re.compile(r"[0-9]{1,5}(?:\.[0-9]{1,6}){0,3}(?:-?[a-z]{1,10}\.?[0-9]{0,6})?")
_TAG = re.compile(
    r"(?=.{1,200}$)[a-z0-9]+(?:[._-][a-z0-9]+)*(?:/[a-z0-9]+(?:[._-][a-z0-9]+)*)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
)
_MOST_PACKAGES = 200
_EXACT_NODE = re.compile(r".+@[0-9]+\.[0-9]+\.[0-9]+[A-Za-z0-9.+-]*")
_ARTIFACTS = ("fonts-dejavu-core", "ghostscript", "imagemagick", "pandoc", "poppler-utils")
_PYTHON, _UV, _NODE = "/opt/python", "/opt/uv", "/opt/node"


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """What is to be in an image; raises `InvalidRequest` for what cannot be, or would be something else in a Dockerfile."""

    name: str
    runtimes: Sequence[str] = ()
    features: Sequence[str] = ()
    apt: Sequence[str] = ()
    npm: Sequence[str] = ()
    pip: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    tag: str = ""
    base: str = DEFAULT_BASE

    def __post_init__(self) -> None:
        _check("name", self.name, _NAME, "1 to 63 characters of a-z, 0-9 and '-'")
        _set(self, "tag", self.tag or f"{self.name}:latest")
        _check("tag", self.tag, _TAG, "a name such as tool:1")
        _set(self, "runtimes", _choices("runtime", self.runtimes, RUNTIMES))
        _set(self, "features", _choices("feature", self.features, FEATURES))
        _set(self, "apt", _packages(self.apt))
        _set(self, "npm", parse_packages(list(self.npm), "node"))
        _set(self, "pip", parse_packages(list(self.pip)))
        _set(self, "base", _checked_base(self.base))
        _set(self, "versions", _checked_versions(self.versions))
        self._check_fitting()

    def _check_fitting(self) -> None:
        """Refuse what nothing in the image could use."""
        uses_node = bool({"node", "bun"} & {*self.runtimes})
        if self.npm and not uses_node:
            raise InvalidRequest("npm packages need runtime node or bun; add one of them")
        if self.pip and "python" not in self.runtimes:
            raise InvalidRequest("Python packages need runtime python; add it")
        if "playwright" in self.features and not {"node", "python"} & {*self.runtimes}:
            raise InvalidRequest("feature playwright needs runtime node or python; add one of them")
        used = {*self.runtimes, *self.features, "uv", *(("pnpm",) if uses_node else ())}
        for name in self.versions:
            if name not in used:
                raise InvalidRequest(
                    f"there is a version of {name}, which the image does not have; leave it out"
                )


def recipe_files(recipe: ImageRecipe) -> dict[str, str]:
    """Return the files that build an image, by name; the last one says who made them."""
    files = {DOCKERFILE: _dockerfile(recipe)}
    if node := _node_packages(recipe):
        files[NODE_PACKAGES] = _json({"private": True, "dependencies": node})
    if python := _python_packages(recipe):
        files[PYTHON_PACKAGES] = "".join(f"{each}\n" for each in python)
    files[IGNORE] = "".join(("*\n", *(f"!{name}\n" for name in files)))
    facts = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(recipe).items()
    }
    hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    files[MANIFEST] = _json({"made_by": MADE_BY, "format": 1, **facts, "files": hashes})
    return files


def unpinned(recipe: ImageRecipe) -> Sequence[str]:
    """Return what may be another thing when the image is built the next time."""
    exact = [each for each in recipe.npm if not _EXACT_NODE.fullmatch(each)]
    loose = [each for each in recipe.pip if "==" not in each]
    runtimes = [each for each in recipe.runtimes if each not in recipe.versions]
    features = [
        each for each in recipe.features if each == "playwright" and each not in recipe.versions
    ]
    return [*runtimes, *features, *(each for each in recipe.apt if "=" not in each), *exact, *loose]


# --- the Dockerfile --------------------------------------------------------------------------------------------


def _dockerfile(recipe: ImageRecipe) -> str:
    return "".join(f"{line}\n" for line in _lines(recipe))


def _lines(recipe: ImageRecipe) -> Iterator[str]:
    node = recipe.versions.get("node") if _uses_node(recipe) else None
    yield f"# Written by {MADE_BY}. Run it again to change it: {MANIFEST} says how it was run."
    if node is not None:
        yield f"FROM node:{node}-bookworm-slim AS node"
    yield f"FROM {recipe.base}"
    yield f'LABEL org.opencontainers.image.title="{recipe.name}"'
    yield "RUN apt-get update \\"
    yield "    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \\"
    yield f"        {' '.join(_apt_packages(recipe))} \\"
    yield "    && rm -rf /var/lib/apt/lists/*"
    if node is not None:
        yield "COPY --from=node /usr/local/bin/node /usr/local/bin/node"
        yield "COPY --from=node /usr/local/lib/node_modules /usr/local/lib/node_modules"
        yield "RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm \\"
        yield "    && ln -s ../lib/node_modules/npm/bin/npx-cli.js /usr/local/bin/npx"
    yield from _node_lines(recipe)
    yield from _python_lines(recipe)
    yield from _playwright_lines(recipe)
    yield "RUN id sandbox || useradd --uid 65532 --user-group --create-home --shell /bin/bash sandbox"
    yield "WORKDIR /workspace"
    yield "USER 65532:65532"


def _apt_packages(recipe: ImageRecipe) -> Sequence[str]:
    found = {"ca-certificates", *recipe.apt}
    if _uses_node(recipe) and "node" not in recipe.versions:
        found |= {"nodejs", "npm"}
    if "python" in recipe.runtimes:
        found |= {"python3", "python3-venv"}
    if "artifacts" in recipe.features:
        found |= {*_ARTIFACTS}
    return sorted(found)


def _node_lines(recipe: ImageRecipe) -> Iterator[str]:
    if "bun" in recipe.runtimes:
        yield f"RUN npm install --global {_with_version('bun', recipe)}"
    if "pnpm" in recipe.versions:
        yield f"RUN npm install --global {_with_version('pnpm', recipe)}"
    if _node_packages(recipe):
        yield f"COPY {NODE_PACKAGES} {_NODE}/{NODE_PACKAGES}"
        yield f"RUN npm install --prefix {_NODE} --no-audit --no-fund"
        yield f"ENV NODE_PATH={_NODE}/node_modules PATH={_NODE}/node_modules/.bin:$PATH"


def _python_lines(recipe: ImageRecipe) -> Iterator[str]:
    if "python" not in recipe.runtimes:
        return
    version = recipe.versions.get("python")
    install = f"{_PYTHON}/bin/pip install --no-cache-dir"
    if version is not None or "uv" in recipe.versions:
        uv = recipe.versions.get("uv")
        yield f"RUN python3 -m venv {_UV} && {_UV}/bin/pip install --no-cache-dir uv{f'=={uv}' if uv else ''}"
        install = f"{_UV}/bin/uv pip install --no-cache --python {_PYTHON}/bin/python"
    if version is not None:
        yield f"ENV UV_PYTHON_INSTALL_DIR={_UV}/pythons"
        yield f"RUN {_UV}/bin/uv python install {version} && {_UV}/bin/uv venv --python {version} {_PYTHON}"
    else:
        yield f"RUN python3 -m venv {_PYTHON}"
    if _python_packages(recipe):
        yield f"COPY {PYTHON_PACKAGES} {_PYTHON}/{PYTHON_PACKAGES}"
        yield f"RUN {install} -r {_PYTHON}/{PYTHON_PACKAGES}"
    yield f"ENV PATH={_PYTHON}/bin:$PATH"


def _playwright_lines(recipe: ImageRecipe) -> Iterator[str]:
    if "playwright" in recipe.features:
        program = (
            f"{_NODE}/node_modules/.bin" if _uses_playwright_of_node(recipe) else f"{_PYTHON}/bin"
        )
        yield "ENV PLAYWRIGHT_BROWSERS_PATH=/opt/browsers"
        yield f"RUN {program}/playwright install --with-deps chromium"


def _node_packages(recipe: ImageRecipe) -> dict[str, str]:
    found = {}
    for each in recipe.npm:
        name, _, version = each.rpartition("@") if "@" in each[1:] else (each, "", "")
        found[name] = version or "*"
    if "playwright" in recipe.features and _uses_playwright_of_node(recipe):
        found.setdefault("playwright", recipe.versions.get("playwright", "*"))
    return found


def _python_packages(recipe: ImageRecipe) -> Sequence[str]:
    if "playwright" not in recipe.features or _uses_playwright_of_node(recipe):
        return recipe.pip
    if any(re.split(r"[\[<>=!~]", each)[0].lower() == "playwright" for each in recipe.pip):
        return recipe.pip
    version = recipe.versions.get("playwright")
    return (*recipe.pip, f"playwright=={version}" if version else "playwright")


def _uses_node(recipe: ImageRecipe) -> bool:
    # Bun comes by way of npm.
    return bool({"node", "bun"} & {*recipe.runtimes})


def _uses_playwright_of_node(recipe: ImageRecipe) -> bool:
    return "node" in recipe.runtimes


def _with_version(name: str, recipe: ImageRecipe) -> str:
    version = recipe.versions.get(name)
    return name if version is None else f"{name}@{version}"


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(value, indent=2) + "\n"


# --- checks ----------------------------------------------------------------------------------------------------


def _set(recipe: ImageRecipe, name: str, value: object) -> None:
    object.__setattr__(recipe, name, value)


def _check(what: str, value: object, pattern: re.Pattern[str], example: str) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InvalidRequest(f"{what} {str(value)[:80]!r} has to be {example}")


def _choices(what: str, given: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    for each in given:
        if each not in known:
            raise InvalidRequest(
                f"there is no {what} {str(each)[:80]!r}; there is: {', '.join(known)}"
            )
    return tuple(each for each in known if each in given)


def _packages(given: Sequence[str]) -> tuple[str, ...]:
    for each in given:
        _check("Debian package", each, _APT, "a name such as curl, or curl=7.88.1-10")
    if len(given) > _MOST_PACKAGES:
        raise InvalidRequest(
            f"{len(given)} Debian packages are too many; the most is {_MOST_PACKAGES}"
        )
    return tuple(sorted(dict.fromkeys(given)))


def _checked_base(base: str) -> str:
    if not isinstance(parse_image(base), RegistryImage):
        raise InvalidRequest("base has to be the name of an image, such as debian:bookworm-slim")
    return base


def _checked_versions(versions: Mapping[str, str]) -> dict[str, str]:
    for name, version in versions.items():
        if name not in VERSIONED:
            raise InvalidRequest(f"there is no version of {str(name)[:80]!r} to choose")
        _check(f"version of {name}", version, _VERSION, "a version such as 22 or 1.2.3")
    return dict(versions)
