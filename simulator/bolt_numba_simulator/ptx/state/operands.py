"""LaneOperands of instructions: registers of all lanes as arrays, numbers, addresses; and how results are put down."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bolt_numba_simulator.ptx.state.registers import LaneRegisters
from bolt_numba_simulator.ptx.state.text import split
from bolt_numba_simulator.ptx.state.types import BOOL, DTYPES, F16, I64, U32, U64, Lanes, RefusedError, Values, literal

Calls = tuple[Callable[[], Any], Callable[[], Any]]
_GRID = {f"%{name}.{axis}" for name in ("ctaid", "nctaid", "tid", "ntid") for axis in "xyz"}
_SPECIAL = _GRID | {
    "%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%dynamic_smem_size", "%total_smem_size", "%clock", "%clock64",
    "%gridid",
    "%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge", "%globaltimer", "%globaltimer_lo",
    "%cluster_ctarank", "%cluster_nctarank", "%clusterid.x", "%clusterid.y", "%clusterid.z", "%is_explicit_cluster",
}  # fmt: skip


class LaneOperands:
    """The part of a machine that decodes operands."""

    program: Any
    registers: LaneRegisters
    specials: dict[str, Any]
    n: int
    mask: Any
    where: Any
    idx: Any
    every: Any

    def dtype(self, name: str) -> np.dtype[Any]:
        if name not in DTYPES:
            raise RefusedError(f"type .{name}")
        return DTYPES[name]

    def source(self, text: str, dtype: Any) -> Values:
        """An operand that is read: an array of all lanes, or one value for all, of this dtype."""
        dtype = np.dtype(dtype)
        array = self.registers.arrays.get(text)
        if array is None and text in _SPECIAL:
            array = self.specials.setdefault(
                text, np.zeros(self.n, U64 if text.endswith(("64", "timer", "gridid")) else U32)
            )
        if array is not None:
            return _viewed(array, dtype, text)
        number = literal(text, dtype)
        if number is not None:
            return number
        found = self.program.symbol(text)
        if found is None:
            raise RefusedError(f"operand {text}")
        return found if dtype in (U64, I64) else found.astype(dtype)

    def read(self, text: str, dtype: Any) -> Callable[[Lanes], Values]:
        """The same as a function of lanes."""
        found = self.source(text, dtype)
        return (lambda idx: found) if np.ndim(found) == 0 else found.__getitem__

    def target(self, text: str, dtype: Any) -> Any:
        """An array of all lanes to put results of this dtype into; wider registers get them extended."""
        dtype = np.dtype(dtype)
        if text == "_":
            return np.empty(self.n, dtype)
        array = self.registers.arrays[text]
        if array.dtype == BOOL or dtype == BOOL:
            if array.dtype != dtype:
                raise RefusedError(f"predicate {text}")
            return array
        if array.dtype.itemsize == dtype.itemsize:
            return array.view(dtype)
        if array.dtype.itemsize < dtype.itemsize:
            raise RefusedError(f"register {text} is too narrow")
        if dtype.kind == "f":
            return array.view(dtype)[:: array.dtype.itemsize // dtype.itemsize]
        return array.view(np.dtype(f"{dtype.kind}{array.dtype.itemsize}"))

    def address(self, text: str) -> Callable[[Lanes], Any]:
        """``[register + bytes]``: byte addresses of lanes, as i64."""
        inner = text.strip()[1:-1].strip()
        found = re.fullmatch(r"(.*?)\s*\+\s*(-?\w+)", inner)
        base, offset = (found[1], int(found[2], 0)) if found else (inner, 0)
        array = self.registers.arrays.get(base)
        if array is None:
            one = self.source(base, U64)
            return lambda idx: np.full(self.every[idx].shape, int(one) + offset, I64)
        if array.dtype.itemsize == 8:
            wide = array.view(I64)
            return (lambda idx: wide[idx] + offset) if offset else wide.__getitem__
        return lambda idx: array[idx].astype(I64) + offset

    def vector(self, text: str) -> list[str]:
        """LaneOperands in braces, or the one."""
        text = text.strip()
        return split(text[1:-1]) if text.startswith("{") else [text]

    def ufunc(self, function: np.ufunc, target: Any, *sources: Values) -> Calls:
        """One ufunc on registers."""
        return partial(function, *sources, out=target), partial(function, *sources, out=target, where=self.where)

    def copy(self, target: Any, source: Values) -> Calls:
        return partial(np.copyto, target, source), partial(np.copyto, target, source, where=self.where)

    def pure(self, target: Any, compute: Callable[..., Any], *sources: Values) -> Calls:
        """Any function of registers: computed for all lanes, put down in some."""
        where = self.where

        def full() -> None:
            target[...] = compute(*sources)

        def masked() -> None:
            np.copyto(target, compute(*sources), where=where, casting="unsafe")

        return full, masked

    def indexed(self, act: Callable[[Lanes], None]) -> Calls:
        """What needs to know which lanes are active."""

        def run() -> None:
            act(self.idx)

        return run, run

    def _fill_specials(self) -> None:
        for name, array in self.specials.items():
            array[...] = self._special(name)

    def _special(self, name: str) -> Any:
        m: Any = self
        head, _, axis = name[1:].partition(".")
        at = "xyz".index(axis) if axis else 0
        x, y, _ = m.threads
        gx, gy, _ = m.grid
        ids = m.block_ids[m.block]
        bit = np.uint64(1) << m.lane.astype(U64)
        below = bit - np.uint64(1)
        full = np.uint64(0xFFFF_FFFF)
        values: dict[str, Callable[[], Any]] = {
            "tid": lambda: (m.linear % x, m.linear // x % y, m.linear // (x * y))[at],
            "ntid": lambda: m.threads[at],
            "ctaid": lambda: (ids % gx, ids // gx % gy, ids // (gx * gy))[at],
            "clusterid": lambda: (ids % gx, ids // gx % gy, ids // (gx * gy))[at],
            "nctaid": lambda: m.grid[at],
            "laneid": lambda: m.lane,
            "warpid": lambda: m.warp,
            "nwarpid": lambda: m.warps,
            "nsmid": lambda: 132,
            "smid": lambda: ids % 132,
            "dynamic_smem_size": lambda: m.shared_bytes,
            "total_smem_size": lambda: m.shared.size,
            "cluster_nctarank": lambda: 1,
            "lanemask_eq": lambda: bit,
            "lanemask_lt": lambda: below,
            "lanemask_le": lambda: below | bit,
            "lanemask_gt": lambda: full & ~(below | bit),
            "lanemask_ge": lambda: full & ~below,
        }
        return values.get(head, lambda: 0)()


def _viewed(array: Any, dtype: np.dtype[Any], text: str) -> Any:
    """A register's array as another dtype; a narrower one sees the low bits."""
    if array.dtype == dtype:
        return array
    if BOOL in (array.dtype, dtype):
        raise RefusedError(f"predicate {text}")
    if array.dtype.itemsize < dtype.itemsize:
        if dtype.kind == "f" or array.dtype == F16:
            raise RefusedError(f"register {text} is too narrow")
        return _Widened(array, dtype)
    return array.view(dtype)[:: array.dtype.itemsize // dtype.itemsize]


class _Widened:
    """A register read as more bits than it has, where a kernel's text does so."""

    def __init__(self, array: Any, dtype: np.dtype[Any]) -> None:
        self.array = array.view(np.dtype(f"{dtype.kind}{array.dtype.itemsize}"))
        self.dtype, self.ndim = dtype, 1

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array.astype(self.dtype)

    def __getitem__(self, idx: Lanes) -> Any:
        return self.array[idx].astype(self.dtype)
