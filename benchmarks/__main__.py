"""`./atoll bench NAME`: runs a benchmark and prints a table or, with `--json`, one object."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys

from atoll.errors import AtollError
from benchmarks import document
from benchmarks.benchmark import Options
from benchmarks.catalog import BENCHMARKS
from benchmarks.contest import PAIRS
from benchmarks.report import table
from benchmarks.root_tree import place
from benchmarks.targets import missed_counts
from tools.places import Failed, own_folder


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    if options.write_docs:
        document.write()
        return 0
    if options.name is None:
        _list()
        return 0
    try:
        report = BENCHMARKS[options.name].measure(Options(options.pairs, options.live))
    except (Failed, AtollError) as error:
        print(f"atoll: {error}", file=sys.stderr)
        return 1
    if options.save:
        document.save(report)
    print(json.dumps(report, ensure_ascii=False) if options.json else table(report))
    if missed := missed_counts(report):
        print(f"atoll: over budget: {', '.join(missed)}", file=sys.stderr)
        return 1
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./atoll bench", description="Atoll beside its peers, in turns, as ratios."
    )
    parser.add_argument("name", nargs="?", choices=BENCHMARKS, metavar="NAME", help="which one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--pairs", type=_positive, default=PAIRS, help="how many (%(default)s)")
    parser.add_argument(
        "--live", type=_positive, default=1000, help="sandboxes of density (%(default)s)"
    )
    parser.add_argument("--save", action="store_true", help="keep the result for the documents")
    parser.add_argument(
        "--write-docs", action="store_true", help="write what docs have of kept results"
    )
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _list() -> None:
    for benchmark in BENCHMARKS.values():
        print(f"{benchmark.name:16}{benchmark.summary}")


def _run_as_program() -> int:
    # So that what we started is ended in good order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        # Templates are made there once; a node that runs for this user is not disturbed.
        os.environ.setdefault("ATOLL_DATA", str(own_folder("data", place())))
    except Failed as error:
        print(f"atoll: {error}", file=sys.stderr)
        return 1
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(_run_as_program())
