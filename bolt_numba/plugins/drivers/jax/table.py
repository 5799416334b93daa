"""The table of operators that JAX gets: which dtypes, and the function that computes them with its arrays.

Functions are traced: operands are arrays of a known shape and dtype and unknown content, or constants of NumPy.  They
are traced with 64 bits, so that no dtype becomes a narrower one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, F32, F64, dtype_name
from bolt_numba.ir.graph import Node
from bolt_numba.ops.dtypes import FLOATS, HALVES, INTS, NUMBERS
from bolt_numba.plugins.drivers.indices import reach
from bolt_numba.plugins.drivers.table import NotThereError, Site, Table, want_dtypes

__all__ = ["DATA", "FLOATS", "INTS", "NUMBERS", "TABLE", "WIDE", "JaxSite", "NotThereError", "builds", "results_of"]
WIDE = (F32, F64)
DATA = (*NUMBERS, BOOL)
TABLE = Table(f"{__name__.rpartition('.')[0]}.nodes")
builds = TABLE.builds


class JaxSite(Site):
    """Where a node of ours is computed by JAX.

    jax, np, lax: the package and two of its modules.  on_cpu: whether XLA's code for processors runs it.  checks: what
    has to hold of the operands' content; a run for which one does not is not the device's.
    """

    def __init__(self, jax: Any, node: Node, on_cpu: bool) -> None:
        super().__init__(node)
        self.jax, self.np, self.lax, self.on_cpu = jax, jax.numpy, jax.lax, on_cpu
        self.checks: list[Any] = []

    def axis(self, axis: int, i: int = 0) -> int:
        """An axis of an operand, counted from the first one."""
        return axis % self.rank(i)

    def result(self, i: int = 0) -> tuple[int, ...]:
        """Sizes of a result."""
        t = self.results[i]
        if not t.is_static:
            raise NotThereError("sizes that only the run tells")
        return t.dims

    def inside(self, indices: Any, sizes: Sequence[Any], wraps: bool) -> Any:
        """Indices of axes of these sizes, counted from the first element; a run in which one is outside fails."""
        limits: Any = np.array(sizes, np.int64) if len(sizes) > 1 else int(sizes[0])
        is_constant = isinstance(indices, np.ndarray)
        v: Any = np if is_constant else self.np
        found = indices.astype(np.int64)
        fits = v.all((found >= (-limits if wraps else 0)) & (found < limits))
        if not is_constant:
            self.checks.append(fits)
        elif not fits:
            raise NotThereError("indices beyond their axis")
        return v.where(found < 0, found + limits, found)


def results_of(jax: Any, node: Node, operands: Sequence[Any], on_cpu: bool) -> tuple[list[Any], list[Any]]:
    """Arrays of JAX for the results of a node, and what has to hold; raises NotThereError."""
    translation = TABLE.of(node)
    want_dtypes(node, translation)
    site, given = JaxSite(jax, node, on_cpu), list(operands)
    if (reached := reach(node)) is not None:
        place, sizes, wraps = reached
        given[place] = site.inside(given[place], sizes, wraps)
    if translation.dtypes is not DATA:  # narrow floats are computed as wide ones; what is only moved stays as it is
        given = [x if x is None or x.dtype not in HALVES else x.astype(F32) for x in given]
    made = translation.build(site, node.op, *given)
    found = list(made) if isinstance(made, (list, tuple)) else [made]
    return [_as_wanted(site, x, i) for i, x in enumerate(found)], site.checks


def _as_wanted(site: JaxSite, x: Any, i: int) -> Any:
    """A result whose type is ours."""
    wanted = site.results[i]
    x = site.np.asarray(x)
    if wanted.dtype in HALVES and x.dtype == F32:
        x = x.astype(wanted.dtype)
    if (x.dtype, x.shape) != (wanted.dtype, wanted.dims):
        raise NotThereError(f"result {i} would be {dtype_name(np.dtype(x.dtype))} of shape {x.shape}")
    return x
