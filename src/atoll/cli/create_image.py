"""`atoll create-image`: writes a Dockerfile for sandboxes, and builds it."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path

from atoll.cli.arguments import Misuse, Parser
from atoll.model.image_recipe import (
    DEFAULT_BASE,
    FEATURES,
    RUNTIMES,
    VERSIONED,
    ImageRecipe,
    recipe_files,
    unpinned,
)

USAGE = "[--name NAME] [--runtime RUNTIME …] [options]"
SUMMARY = "Write a Dockerfile for sandboxes, and build it."
DETAILS = (
    "In a terminal it asks for what is not said. A runtime without a version comes from Debian's packages. What it writes goes"
    " to a directory of its own, with a manifest by which it knows that directory again; nobody else's files are replaced."
)


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    parser.add_argument("--name", metavar="NAME", help="what it is called")
    _add_list(parser, "--runtime", f"one of {', '.join(RUNTIMES)}")
    _add_list(parser, "--feature", f"one of {', '.join(FEATURES)}")
    _add_list(parser, "--apt", "a Debian package: curl, curl=7.88.1-10")
    _add_list(parser, "--npm", "an npm package: lodash, lodash@4.17.21")
    parser.add_argument(
        "--pip", "--uv", dest="pip", metavar="WORD", action="append", default=[],
        help="a Python package: pandas, pandas==2.2.3; repeatable",
    )  # fmt: skip
    for name in VERSIONED:
        parser.add_argument(f"--{name}-version", metavar="VERSION", help=f"which {name}")
    parser.add_argument("--base", metavar="IMAGE", default=DEFAULT_BASE, help="what it is built on")
    parser.add_argument("--tag", metavar="TAG", default="", help="what the image is called")
    parser.add_argument("--output", metavar="DIR", help="where files are written; else ./NAME")
    parser.add_argument(
        "--engine", choices=("docker", "podman"), default="docker", help="who builds"
    )
    parser.add_argument("--no-build", action="store_true", help="only write the files")
    parser.add_argument("--dry-run", action="store_true", help="only print the files")
    parser.add_argument("--force", action="store_true", help="replace what was written here before")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_list(parser: Parser, option: str, text: str) -> None:
    parser.add_argument(
        option, metavar="WORD", action="append", default=[], help=f"{text}; repeatable"
    )


def execute(options: Namespace) -> int:
    """Do what was asked for."""
    recipe = _read_recipe(options)
    files = recipe_files(recipe)
    _warn(recipe)
    if options.dry_run:
        _print_files(files, as_json=options.json)
        return 0
    from atoll.cli.recipe_folder import write_recipe

    folder = Path(options.output or recipe.name)
    write_recipe(folder, files, force=options.force)
    image = None if options.no_build else _build(folder, recipe, options.engine)
    _print_outcome(recipe, folder, image, options)
    return 0


def _read_recipe(options: Namespace) -> ImageRecipe:
    found = {name: getattr(options, f"{name}_version") for name in VERSIONED}
    versions = {name: version for name, version in found.items() if version is not None}
    make = partial(ImageRecipe, npm=options.npm, pip=options.pip, versions=versions)
    make = partial(make, tag=options.tag, base=options.base)
    if options.name is not None and (options.runtime or options.apt):
        return make(
            name=options.name,
            runtimes=options.runtime,
            features=options.feature,
            apt=options.apt,
        )
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Misuse("--name, and a --runtime or --apt, have to be given where nobody can be asked")
    from atoll.cli.recipe_questions import ask_recipe

    return ask_recipe(make, options.name)


def _warn(recipe: ImageRecipe) -> None:
    from atoll.cli.messages import notice

    if loose := unpinned(recipe):
        notice(f"not pinned, and maybe another one the next time: {', '.join(loose)}")


def _build(folder: Path, recipe: ImageRecipe, engine: str) -> str:
    from atoll.cli.templates import build_tagged
    from atoll.errors import AtollError

    try:
        return build_tagged(folder, recipe.tag, engine)
    except AtollError as error:
        # What was written stays: it is what has to be looked at.
        error.details.setdefault(
            "next_step", f"see {folder}/Dockerfile, and run this again with --force"
        )
        raise


def _print_files(files: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(files), flush=True)
        return
    for name, text in files.items():
        print(f"── {name}\n{text}", end="", flush=True)


def _print_outcome(
    recipe: ImageRecipe, folder: Path, image: str | None, options: Namespace
) -> None:
    if options.json:
        facts = {"tag": recipe.tag, "folder": str(folder.absolute()), "image": image}
        print(json.dumps(facts), flush=True)
        return
    print(f"wrote {folder}", file=sys.stderr)
    if image is None:
        print(f"build it with: {options.engine} build -t {recipe.tag} {folder}")
    else:
        print(recipe.tag)
        use = f'Sandbox(engine="{options.engine}", image="{recipe.tag}")'
        print(f"use it with: {use}", file=sys.stderr, flush=True)
