"""`python -m tools.pictures`: the picture of a terminal that README.md shows, of commands that are really run."""

from __future__ import annotations

import subprocess
import sys

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from tools.bootstrap import ROOT

PICTURE = ROOT / "docs" / "pictures" / "first-commands.svg"
COMMANDS = (
    "./atoll run -c 'print(6 * 7)'",
    "./atoll run -c 'import os; print(os.getuid(), os.listdir(\"/home\"))'",
    "./atoll run --memory 256m -c 'x = bytearray(10**9)'",
    "./atoll run --timeout 1 -c 'while True: pass'",
    "printf 'x = [n * n for n in range(5)]\\nsum(x)\\n' | ./atoll repl",
    "./atoll run --language bash -c 'rm -rf / 2>/dev/null; ls -d /usr /etc'",
)
_COLUMNS = 88
_THEME = TerminalTheme(
    (14, 30, 37), (222, 233, 231), [(14, 30, 37), *[(222, 233, 231)] * 7], [(110, 130, 132)] * 8
)
# A page of ours, with no address of anybody else's in it: rich's own asks for fonts elsewhere.
_FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>Commands of Atoll and what they print</title>
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>{lines}</defs>
<rect width="{width}" height="{height}" rx="8" fill="#0e1e25"/>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g>
</svg>
"""


def main() -> int:
    with open("/dev/null", "w") as nowhere:
        console = Console(record=True, width=_COLUMNS, file=nowhere)
        for command in COMMANDS:
            show(console, command)
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(
            console.export_svg(
                theme=_THEME,
                code_format=_FORMAT,
                unique_id="atoll",
            )
        )
    print(f"{PICTURE.relative_to(ROOT)} written")
    return 0


def show(console: Console, command: str) -> None:
    """Run one command, and put it down as a person would see it."""
    output = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ).stdout
    console.print(Text("$ ", style="#35b8a6") + Text(command, style="bold #ffffff"))
    console.print(Text(output.rstrip("\n"), style="#dee9e7"))


if __name__ == "__main__":
    sys.exit(main())
