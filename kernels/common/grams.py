"""TfIdfVectorizer of numbers: n-grams are paths of a tree, whose edges are found by a search."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import lru_cache

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import I32, Array, dtype_name
from bolt_numba.base.types import I64 as INT64
from bolt_numba.kernels.common.labels import searched
from bolt_numba.kernels.declare import I64, PTR, inline
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.elements import DeviceParts, elements
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Step, Types, always, everywhere
from bolt_numba.ops.data.text import TfIdfVectorizer

ITEM_BITS = 31
"""An edge is the number of its node, shifted by as many bits, plus the item."""
MODES = ("TF", "IDF", "TFIDF")


@record(frozen=True, eq=False)
class GramTree:
    """N-grams from the root, node 0.

    edges: ascending; ends: the node that each leads to; columns: of the result by node, -1 where no n-gram ends.
    """

    edges: Array
    ends: Array
    columns: Array


@lru_cache(maxsize=16)
def _tree(op: TfIdfVectorizer) -> GramTree:
    ends: dict[int, int] = {}
    columns = [-1]
    for gram, number in op.grams().items():
        node = 0
        for item in gram:
            node = ends.setdefault((node << ITEM_BITS) + int(item), len(columns))
            if node == len(columns):
                columns.append(-1)
        columns[node] = op.ngram_indexes[number]
    edges = sorted(ends)
    return GramTree(np.array(edges, INT64), np.array([ends[edge] for edge in edges], INT64), np.array(columns, INT64))


def _counted(a: Numbers, dtype: str, mode: int) -> dict[str, Reach]:
    tables: dict[str, Reach] = {"edges": 8 * a.k, "ends": 8 * a.k, "columns": 8 * a.nodes, "scale": 4 * a.outs}
    return tables | {"x": int(dtype[1:]) // 8 * a.rows * a.width, "y": 4 * a.rows * a.outs}


@elements(
    over={"row": "rows"}, extents=_counted, x=PTR, y=PTR, edges=PTR, ends=PTR, columns=PTR, scale=PTR,
    width=I64, outs=I64, k=I64, nodes=I64, least=I64, most=I64, steps=I64,
)  # fmt: skip
def count_grams(on: DeviceParts, dtype: str, mode: int):
    """Kernel of y [rows, outs]: how often the n-grams of least to most items occur in each row of x [rows, width].

    steps: distances of items, from 1 on.  mode: its place in MODES.
    """
    item_of, size, search = on.load(dtype), int(dtype[1:]) // 8, searched(on, "i64")
    load, number, store = on.load("i64"), on.load("f32"), on.store("f32")
    zero, one, is_weighed, is_once = np.float32(0), np.float32(1), mode > 0, mode == 1

    @inline
    def child(node, item, edges, ends, k):
        """-1: there is none."""
        if item < 0 or item >> ITEM_BITS != 0:
            return -1
        edge = (node << ITEM_BITS) + item
        at = search(edges, k, edge)
        return load(ends + 8 * at) + 0 if load(edges + 8 * at) == edge else -1

    @inline
    def element(row, x, y, edges, ends, columns, scale, width, outs, k, least, most, steps):
        line, to = x + size * row * width, y + 4 * row * outs
        for i in range(outs):
            store(to + 4 * i, zero)
        for step in range(1, steps + 1):
            for start in range(width):
                node, length, at = 0, 0, start
                while node >= 0 and length < most and at < width:
                    node = child(node, item_of(line + size * at) + 0, edges, ends, k)
                    length += 1
                    at += step
                    column = load(columns + 8 * node) + 0 if node >= 0 else -1
                    if column >= 0 and length >= least and (length > 1 or step == 1):
                        store(to + 4 * column, number(to + 4 * column) + one)
        if is_weighed:
            for i in range(outs):
                count = number(to + 4 * i)
                if is_once:
                    count = one if count > zero else zero
                store(to + 4 * i, count * number(scale + 4 * i))
        return 0

    return element


def _has_items(op: TfIdfVectorizer, ins: Types) -> bool:
    return (
        ins[0].dtype in (I32, INT64)
        and bool(op.pool)
        and all(not isinstance(item, str) and 0 <= item < 1 << ITEM_BITS for item in op.pool)
    )


@everywhere(TfIdfVectorizer, accepts=_has_items, computes=always, few=True)
def tf_idf_vectorizer(op: TfIdfVectorizer, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """Items of 0 to 2^31 - 1."""
    x, y = ins[0], outs[0]
    if not y.size:
        return []
    tree, width, count = _tree(op), x.dims[-1], y.dims[-1]
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "edges": tree.edges, "ends": tree.ends}
    args |= {"columns": tree.columns, "scale": op.scale(), "rows": y.size // count, "width": width, "outs": count}
    args |= {"k": len(tree.edges), "nodes": len(tree.columns), "least": op.min_gram_length}
    args |= {"most": op.max_gram_length, "steps": min(op.max_skip_count + 1, width)}
    return [on.step(count_grams, (dtype_name(x.dtype), MODES.index(op.mode)), args, on.pays(y.nbytes, x.size))]
