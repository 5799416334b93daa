"""Inputs that are views of memory in another order of axes, as images that are NHWC in memory and NCHW to the model.

A plan begins with the transposition that its kernels want.  Where a view undoes just that, the memory behind it is
what they read: another plan, without the transposition, takes it as it is.  Any other view is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bolt_numba.base.types import Array
from bolt_numba.runtime.copies import Views, dense
from bolt_numba.runtime.region import Region

if TYPE_CHECKING:
    from bolt_numba.runtime.runner import Runner

Orders = tuple[tuple[int, ...] | None, ...]
"""For each input the axes of a view as they lie in memory; None where it is contiguous."""


def reading(runner: Runner, arrays: Views, names: Sequence[str]) -> tuple[Runner, list[Array]]:
    """What runs these inputs, and contiguous arrays for it: the memory behind the views, or copies."""
    orders = tuple([None if array.flags.c_contiguous else _order(array) for array in arrays])
    found = None
    if any(orders) and not runner.far and runner.make is None:  # else a run has to make the graph anew first
        if orders not in runner.orders:
            region = _behind(runner.region, orders)
            runner.orders.setdefault(orders, None if region is None else _beside(runner, region))
        found = runner.orders.get(orders)  # none where another thread closes the session
    if found is None:
        return runner, dense(arrays, names)
    there = [array if order is None else array.transpose(order) for array, order in zip(arrays, orders, strict=True)]
    return found, dense(there, names)


def _beside(runner: Runner, region: Region) -> Runner:
    """The runner of a region that takes a part of the other one's calls."""
    made = runner.like(region)
    made.is_first = runner.is_first
    made.serving.is_running |= bool(runner.prepared)
    return made


def _order(array: Array) -> tuple[int, ...] | None:
    """Axes of a view as they lie in memory, the outermost first; None where that has gaps.

    An axis of one element, as ``image[None]`` has, lies anywhere: it comes first, as a batch does.
    """
    order = tuple(sorted(range(array.ndim), key=lambda axis: (array.shape[axis] > 1, -array.strides[axis])))
    return order if array.transpose(order).flags.c_contiguous else None


def _behind(region: Region, orders: Orders) -> Region | None:
    """The region from behind the transpositions of inputs on; None where it does anything else with them."""
    inputs, skipped = list(region.inputs), []
    kept = {id(value) for value in region.outputs} | region.alias.keys()
    for place, order in enumerate(orders):
        if order is None:
            continue
        value = inputs[place]
        readers = [node for node in region.nodes if any(v is value for v in node.operands)]
        if len(readers) != 1 or readers[0].op.axis_order != order or id(value) in kept:
            return None
        (inputs[place],) = readers[0].outputs
        if id(inputs[place]) in kept:
            return None
        skipped.append(readers[0])
    nodes = [node for node in region.nodes if not any(node is each for each in skipped)]
    return Region(inputs, nodes, region.outputs, dict(region.alias), dict(region.known))
