"""`atoll template`: templates of packages or of images."""

from __future__ import annotations

from argparse import Namespace

from atoll.cli.arguments import Misuse, Parser
from atoll.model.language import PYTHON
from atoll.model.packages import BUILT_LANGUAGES

USAGE = "build NAME (PACKAGE … | --image IMAGE | --dockerfile DIR) | pull IMAGE | ls | inspect NAME | rm NAME …"
SUMMARY = "Build, list, inspect or remove templates of packages or of images; pull images."
DETAILS = (
    "Sandboxes of a template with packages start as fast as others, with the packages loaded: Sandbox(template=NAME)."
    " Packages are written as pip takes them: pandas, pandas==2.2.3; with --language node as npm does: lodash@4.17.21."
    " They come from this machine's package index."
    " IMAGE is docker-archive:FILE.tar (of docker save), oci:DIRECTORY, or what a registry calls it: python:3.13,"
    " registry.example/team/tool@sha256:…. Sandboxes see its files instead of this machine's."
    " With --dockerfile, docker or podman builds it, keeps the image and makes sandboxes of it; other engines see its files."
    " 'pull' has docker or podman fetch an image, or make that of a template (python, node, r, data) from Debian packages."
    " A NAME that exists may be pinned: NAME@sha256:DIGEST."
    " Those of the data directory are meant, or of the node that ATOLL_URL names."
)

_USUAL_ENGINE = "docker"


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    parser.add_argument("action", choices=("build", "pull", "ls", "inspect", "rm"))
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--preload",
        metavar="MODULE",
        action="append",
        help="have kernels find this module loaded; else those of the packages; repeatable",
    )
    parser.add_argument(
        "--language",
        choices=BUILT_LANGUAGES,
        help="whose packages they are; else python",
    )
    parser.add_argument(
        "--image",
        metavar="IMAGE",
        help="build it of an image: docker-archive:FILE, oci:DIR or a name",
    )
    parser.add_argument(
        "--dockerfile", metavar="DIR", help="build it of the directory of a Dockerfile"
    )
    parser.add_argument(
        "--engine",
        choices=("docker", "podman"),
        help="who builds or fetches; else docker",
    )
    parser.add_argument(
        "--no-unpack", action="store_true", help="of a Dockerfile: for that engine alone"
    )
    parser.add_argument("words", nargs="*", metavar="NAME|PACKAGE …")


def execute(options: Namespace) -> int:
    """Do what was asked for."""
    _check(options)
    from atoll.cli import templates

    match options.action:
        case "build":
            name, *packages = options.words
            if options.image is not None:
                return templates.build_image(name, options.image, as_json=options.json)
            if options.dockerfile is not None:
                return templates.build_dockerfile(
                    name,
                    options.dockerfile,
                    engine=options.engine or _USUAL_ENGINE,
                    is_unpacked=not options.no_unpack,
                    as_json=options.json,
                )
            language = options.language or PYTHON.name
            return templates.build(name, packages, language, options.preload, as_json=options.json)
        case "pull":
            engine = options.engine or _USUAL_ENGINE
            return templates.pull(options.words[0], engine=engine, as_json=options.json)
        case "ls":
            return templates.show_all(as_json=options.json)
        case "inspect":
            return templates.show(options.words[0], as_json=options.json)
        case _:
            return templates.remove(options.words, as_json=options.json)


def _check(options: Namespace) -> None:
    action, words = options.action, len(options.words)
    sources = [each for each in (options.image, options.dockerfile) if each is not None]
    build = (1, 1) if sources else (2, 1000)
    counts = {"build": build, "pull": (1, 1), "ls": (0, 0), "inspect": (1, 1), "rm": (1, 1000)}
    least, most = counts[action]
    if not least <= words <= most or len(sources) > 1:
        raise Misuse(
            "'atoll template build' needs a name, and packages, --image or --dockerfile; 'pull' an image,"
            " 'inspect' a name, 'rm' names, 'ls' nothing"
        )
    asked = (options.preload, options.language)
    if action != "build" and (sources or asked != (None, None)):
        raise Misuse(
            "--language, --preload, --image and --dockerfile are for 'atoll template build'"
        )
    if sources and options.language is not None:
        raise Misuse("--language is for packages; an image has what it has")
    if options.preload is not None and options.language not in (None, PYTHON.name):
        raise Misuse("--preload is for packages of Python: a Node loads its own, always")
    if sources and options.preload is not None:
        raise Misuse("--preload is for packages; kernels of an image start by themselves")
    if options.engine is not None and action != "pull" and options.dockerfile is None:
        raise Misuse("--engine says who builds a Dockerfile, or pulls an image")
    if options.no_unpack and options.dockerfile is None:
        raise Misuse("--no-unpack is for --dockerfile")
