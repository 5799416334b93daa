"""Accesses beyond guard pages, told instead of dying of them.

While a kernel is `watched`, a page that it may not touch is opened when it does so, and the kernel goes on; afterwards
the page is closed again and `summary` says what was touched.  Linux only: elsewhere the process dies, as everywhere of
an access that no page can be opened for.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from bolt_numba.kernels.registry import In, Out
from bolt_numba.types import Array

PAGE = mmap.PAGESIZE
NOWHERE = 1 << 46
"""An address that no memory has, for what a kernel says it does not touch."""
MOST = 64
"""Pages opened for one kernel; one that touches more has run away."""
GUARDS: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()
"""Pages that must not be touched, by address."""

_NONE, _READ, _WRITE = 0, 1, 2
_NEW = 0x2 | 0x20 | 0x100000  # private, anonymous, at this address and in no other mapping's place
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_size_t
_libc.mmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]


class _Action(ctypes.Structure):
    """``struct sigaction`` of Linux's C libraries."""

    _fields_ = (
        ("handler", ctypes.c_void_p), ("mask", ctypes.c_ubyte * 128), ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )  # fmt: skip


@dataclass
class Touched:
    """What one kernel touched.  first: the first address in each page, and whether it wrote there at last."""

    first: dict[int, int] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)
    made: set[int] = field(default_factory=set)
    before: _Action = field(default_factory=_Action)


_now: Touched | None = None


def protect(address: int, allowed: int) -> bool:
    return not _libc.mprotect(address, PAGE, allowed)


def close_page(memory: mmap.mmap, address: int) -> None:
    """Make a page of ``memory`` one that must not be touched."""
    if not protect(address, _NONE):
        raise OSError(ctypes.get_errno(), "mprotect")
    GUARDS[address] = memory


def _open(touched: Touched, address: int) -> bool:
    """Let the kernel go on where it was: first it may read, and only when that is not enough write."""
    page = address // PAGE * PAGE
    if page in touched.written:
        return False
    if page in touched.first:
        touched.written.add(page)
        return protect(page, _READ | _WRITE)
    if len(touched.first) == MOST:
        return False
    if page not in GUARDS:
        if _libc.mmap(page, PAGE, _READ, _NEW, -1, 0) != page:
            return False
        touched.made.add(page)
    elif not protect(page, _READ):
        return False
    touched.first[page] = address
    return True


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
def _handler(number: int, info: int, context: int) -> None:
    """Runs in the midst of the kernel, which holds no lock of Python's; the statement is tried again behind it."""
    assert _now is not None
    address = ctypes.c_size_t.from_address(info + 16).value
    if not _open(_now, address):
        os.write(2, f"\na kernel touches {address:#x}, and {len(_now.first)} pages before that\n".encode())
        _libc.sigaction(signal.SIGSEGV, ctypes.byref(_now.before), None)


_ours = _Action(ctypes.cast(_handler, ctypes.c_void_p).value, flags=4)


@contextmanager
def watched() -> Iterator[Touched]:
    """What the kernels called meanwhile touch that they must not."""
    global _now
    found = Touched()
    if sys.platform != "linux":
        yield found
        return
    _now = found
    _libc.sigaction(signal.SIGSEGV, ctypes.byref(_ours), ctypes.byref(found.before))
    try:
        yield found
    finally:
        _libc.sigaction(signal.SIGSEGV, ctypes.byref(found.before), None)
        for page in found.first:
            if page in found.made:
                _libc.munmap(page, PAGE)
            else:
                protect(page, _NONE)


def summary(touched: Touched, values: Mapping[str, Any], args: Mapping[str, Any], memory: Iterable[Array]) -> str:
    """One line for each page: the field, what it stands for, before or behind it, by how many bytes.

    values: what the fields hold.  args: what the step gives for them.  memory: everything that may be touched.
    """
    places = [(a.ctypes.data, a.ctypes.data + a.nbytes) for a in memory if a.nbytes]
    lines = []
    for page, address in sorted(touched.first.items()):
        how = "writes" if page in touched.written else "reads"
        unused = [name for name, value in values.items() if value == NOWHERE]
        if unused and abs(address - NOWHERE) < 1 << 40:
            lines.append(f"{how} {' or '.join(map(repr, unused))}, of which it declares to touch nothing")
            continue
        if address < 1 << 16:
            lines.append(f"{how} address {address:#x}, as of an operand that is not there")
            continue
        first, end = min(places, key=lambda p: max(p[0] - address, address - p[1]))
        at = {name: max(first - int(v), int(v) - end, 0) for name, v in values.items() if name in args}
        near = [name for name, distance in at.items() if distance == min(at.values())]
        owner = " or ".join(f"'{name}' ({_shown(args[name])})" for name in near)
        where = f"byte {address - end + 1} behind" if address >= end else f"byte {first - address} before"
        lines.append(f"{how} {where} the {end - first} bytes of {owner}")
    return "; ".join(lines)


def _shown(arg: Any) -> str:
    kinds = {In: "input", Out: "output"}
    return f"{kinds[type(arg)]} {arg.index}" if type(arg) in kinds else type(arg).__name__
