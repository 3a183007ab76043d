"""How the native programs are compiled: the compiler, flags that several share, and headers made from Python. Standard library only."""

from __future__ import annotations

import ctypes
import os
import runpy
import shutil
import sys
from ctypes import c_char, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64
from pathlib import Path
from typing import Any

WARNINGS = ("-Wall", "-Wextra", "-Werror", "-std=gnu11")
HOST_FLAGS = (
    "-O2", "-fPIE", "-pie", "-D_FORTIFY_SOURCE=2", "-fstack-protector-strong", "-Wl,-z,relro,-z,now",
)  # fmt: skip
WITHOUT_LIBRARY = (
    "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-fno-asynchronous-unwind-tables",
    "-fno-tree-loop-distribute-patterns", "-Wl,--build-id=none", "-s",
)  # fmt: skip
# Of what runs inside: static, without a C library.
GUEST_FLAGS = ("-Os", "-static", "-fno-pie", "-no-pie", *WITHOUT_LIBRARY)

_C_TYPES = {
    c_int32: "int32_t", c_uint32: "uint32_t", c_int64: "int64_t", c_uint64: "uint64_t", c_uint16: "uint16_t",
    c_uint8: "uint8_t",
}  # fmt: skip


def find_compiler() -> str:
    """Return the C compiler, or stop with what to install."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return name
    sys.exit("no C compiler found; install one, for example the Debian packages gcc and libc6-dev")


def c_header(source: Path) -> str:
    """Return the C header that says the same as a `wire.py`: its constants, texts, enums and structures."""
    names = runpy.run_path(str(source))
    lines = [
        f"/* Made from {source.parent.name}/{source.name}. */",
        "#pragma once",
        "#include <stdint.h>",
        "",
    ]
    lines += [f"#define ATOLL_{name} {names[name]}" for name in names["C_CONSTANTS"]]
    for name, texts in names.get("C_TEXTS", {}).items():
        lines.append(f"#define ATOLL_{name} " + ", ".join(f'"{text}"' for text in texts))
    for enum in names["C_ENUMS"]:
        prefix = _snake(enum.__name__)
        members = ", ".join(f"{prefix.upper()}_{member.name} = {member.value}" for member in enum)
        lines.append(f"enum {prefix} {{ {members} }};")
    for struct in names["C_STRUCTS"]:
        name = _snake(struct.__name__)
        body = " ".join(_c_field(*field) for field in struct._fields_)
        lines.append(f"struct {name} {{ {body} }};")
        lines.append(f'_Static_assert(sizeof(struct {name}) == {ctypes.sizeof(struct)}, "{name}");')
    return "\n".join(lines) + "\n"


def _c_field(name: str, kind: Any) -> str:
    if kind in _C_TYPES:
        return f"{_C_TYPES[kind]} {name};"
    if issubclass(kind, ctypes.Structure):
        return f"struct {_snake(kind.__name__)} {name};"
    length, element = kind._length_, kind._type_
    if element is c_char:
        return f"char {name}[{length}];"
    c_type = _C_TYPES.get(element) or f"struct {_snake(element.__name__)}"
    return f"{c_type} {name}[{length}];"


def _snake(name: str) -> str:
    letters = ("_" + letter.lower() if letter.isupper() else letter for letter in name)
    return "".join(letters).strip("_")
