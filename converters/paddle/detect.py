"""Telling Paddle files from others, by name or content."""

from __future__ import annotations

from pathlib import Path

from bolt_numba.base.files.regular import open_regular

PROGRAMS = ("__model__", "model.pdmodel", "inference.pdmodel", "model", "inference.json", "model.json")
"""Files of a folder that may be the program, in the order in which they are looked for."""


HEAD = 64
"""Bytes of a file of a folder that tell what it is."""


def is_paddle(head: bytes, path: Path | None) -> bool:
    """By name or content: a folder with a program, a first block of index 0, or JSON of PIR."""
    if path is not None and path.is_dir():
        return program_of(path) is not None
    return (path is not None and _is_named(path)) or _is_program(head)


def _is_named(path: Path) -> bool:
    """Weights, too: who gives them as the model is told that they are no program."""
    return path.suffix.lower() in (".pdmodel", ".pdiparams") or path.name == "__model__"


def _is_program(head: bytes) -> bool:
    """Whether a file begins as PIR does, or with a block, which begins with its index 0 and a parent below 0."""
    if head[:1] == b"{":
        return b'"base_code"' in head
    at = 1
    while at < len(head) and head[at] > 127:
        at += 1
    return head[:1] == b"\n" and head[at + 1 : at + 5] == b"\x08\x00\x10\xff"


def program_of(folder: Path) -> Path | None:
    """The program in a folder: a file of a usual name, else the only `.pdmodel`."""
    for path in (folder / name for name in PROGRAMS):
        if path.is_file() and (_is_named(path) or _is_program(_head(path))):
            return path
    others = sorted(p for p in folder.glob("*.pdmodel") if p.is_file())
    return others[0] if len(others) == 1 else None


def _head(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read(HEAD)
