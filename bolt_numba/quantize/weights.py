"""`weights_only`: weights of products in 4 or 8 bits, activations as they are."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from bolt_numba.base.border import border, theirs
from bolt_numba.base.errors import BoltError, DataError, OptionError
from bolt_numba.base.options import flag_of
from bolt_numba.base.records import record
from bolt_numba.base.types import F32, I8, U8, Array
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.quantize import DequantizeLinear
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.passes.pipeline import deep_clone
from bolt_numba.passes.pipeline.portable import simplify
from bolt_numba.quantize.blocks import Blocks, gptq, nearest
from bolt_numba.quantize.calibrate import Progress, no_progress
from bolt_numba.quantize.data import Data, Feed, feeds_of
from bolt_numba.quantize.layers import LEAST_WEIGHTS, QuantLayer, Scheme, is_large, layers_of, schemes_for
from bolt_numba.quantize.sensitivity import sqnr
from bolt_numba.quantize.tool import write_model
from bolt_numba.sessions.inputs import spec_of
from bolt_numba.sessions.loading import Source, load
from bolt_numba.sessions.session import Session

WAYS = ("rtn", "mse", "gptq")
STORED: dict[tuple[int, bool], Any] = {
    (8, True): I8, (8, False): U8, (4, True): np.dtype(ml_dtypes.int4), (4, False): np.dtype(ml_dtypes.uint4)
}  # fmt: skip


@record(frozen=True)
class NarrowWeight:
    """One weight: where, its shape, bytes before and after, and the SQNR in dB of what it means now."""

    name: str
    shape: tuple[int, ...]
    before: int
    after: int
    sqnr: float


@record()
class NarrowModel:
    """A model whose weights take fewer bits."""

    graph: Graph
    weights: list[NarrowWeight]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as ``.onnx`` or ``.bolt``, complete or not at all."""
        write_model(self.graph, path)

    def summary(self) -> str:
        """How many weights there are, their bytes, and the one that lost most."""
        before, after = (sum(getattr(w, side) for w in self.weights) / 2**20 for side in ("before", "after"))
        worst = min((w.sqnr for w in self.weights), default=np.inf)
        count = f"{len(self.weights)} weight{'' if len(self.weights) == 1 else 's'}"
        return f"{count}, {before:.3g} MiB -> {after:.3g} MiB, SQNR of the worst {worst:.1f} dB"

    def __str__(self) -> str:
        rows = [f"{w.name}  {'x'.join(map(str, w.shape))}  {w.sqnr:.1f} dB" for w in self.weights]
        return "\n".join([*rows, self.summary()])


@border("quantize", OSError)
def weights_only(
    model: Source,
    *,
    bits: int = 4,
    block: int | None = 32,
    method: str = "mse",
    symmetric: bool = True,
    tables: bool = True,
    data: Data | None = None,
    keep: Sequence[str] = (),
    threads: int | None = None,
    signature: str | None = None,
    progress: Progress = no_progress,
) -> NarrowModel:
    """A model whose products read weights of few bits, and compute with floats as before.

    bits: 4 or 8.  block: numbers along the reduced axis that share a scale; None: a scale for each column.
    method: "rtn" rounds to the nearest of the whole range, "mse" to that of the part of least squared error, "gptq"
    hands errors on to weights that can make up for them, and needs ``data`` (see `data.feeds_of`).
    symmetric: no zero points.  tables: store tables of embeddings in 8 bits; rows that are looked up become floats.
    keep: patterns of names of layers that stay float.
    Raises OptionError for another number of bits and their like, BoltError without products of constant weights.
    """
    _check(bits, block, method, data)
    progress, symmetric = theirs("progress", progress), flag_of("symmetric", symmetric)
    source = simplify(load(model, signature=signature))
    layers = [layer for layer in layers_of(source) if _is_product(layer)]
    wanted = schemes_for(layers, Scheme(), keep, {})
    layers = [layer for layer in layers if wanted[layer.name] is not None]
    if not layers:
        raise BoltError(f"{source.called}: got no product with at least {LEAST_WEIGHTS} constant weights, wanted one")
    moments = {}
    if method == "gptq" and data is not None:
        feeds = feeds_of(data, [spec_of(v.name, v.type) for v in source.inputs])
        moments = _second_moments(source, layers, feeds, threads, progress)
    found: dict[str, tuple[int, Blocks]] = {}
    for i, layer in enumerate(layers):
        progress("rounding weights", i, len(layers))
        w = layer.weights
        assert w is not None, "products have weights"
        along = 0 if layer.axis == 1 else 1
        rows, size = np.ascontiguousarray(w if along == 1 else w.T), block or w.shape[along]
        seen = moments.get(layer.operand(0).name)
        search = method != "rtn"
        made = nearest(rows, bits, size, symmetric, search) if seen is None else gptq(rows, seen, bits, size, symmetric)
        found[layer.name] = along, made
    progress("rounding weights", len(layers), len(layers))
    made_model = _built(source, layers, found, STORED[bits, symmetric], block)
    return _with_tables(made_model, block, keep) if flag_of("tables", tables) else made_model


def _check(bits: Any, block: Any, method: Any, data: Any) -> None:
    if bits not in (4, 8):
        raise OptionError(f"bits: got {bits!r}, wanted 4 or 8")
    if block is not None and not (isinstance(block, int) and block >= 16 and block % 16 == 0):
        raise OptionError(f"block: got {block!r}, wanted a multiple of 16, or None")
    if method not in WAYS:
        raise OptionError(f"method: got {method!r}, wanted one of {', '.join(WAYS)}")
    if method == "gptq" and data is None:
        raise OptionError("method: got 'gptq' without data, wanted a few inputs of the model")


def _is_product(layer: QuantLayer) -> bool:
    op: Any = layer.node.op
    return isinstance(op, MatMul) and layer.weight == 1 and not op.trans_a and is_large(layer.weights)


def _second_moments(
    graph: Graph, layers: Sequence[QuantLayer], feeds: Sequence[Feed], threads: int | None, progress: Progress
) -> dict[str, Array]:
    """Of the inputs of the layers: [k, k], sums over all rows of all feeds of products of each two elements."""
    names = list(dict.fromkeys(layer.operand(0).name for layer in layers))
    found: dict[str, Array] = {}
    seen = deep_clone(graph)
    values = {value.name: value for value in seen.values()}
    seen.set_outputs([values[name] for name in names], names)
    seen.drop_dead()
    with Session(seen, threads=threads, stand_ins=False) as session:
        for i, feed in enumerate(feeds):
            progress("looking at the data", i, len(feeds))
            wanted = {spec.name for spec in session.inputs}
            for name, x in zip(names, session.run(None, {k: v for k, v in feed.items() if k in wanted}), strict=True):
                rows = x.reshape(-1, x.shape[-1]).astype(np.float32)
                with np.errstate(over="ignore", invalid="ignore"):
                    found[name] = found.get(name, np.float64(0)) + (rows.T @ rows)
                if not np.isfinite(found[name]).all():
                    raise DataError(f"gptq: sample {i}: squares of tensor {name!r}: got NaN or infinity, wanted less")
    progress("looking at the data", len(feeds), len(feeds))
    return found


def _built(
    source: Graph, layers: Sequence[QuantLayer], found: dict[str, tuple[int, Blocks]], dtype: Any, block: int | None
) -> NarrowModel:
    """The graph with integers in the place of weights."""
    graph = source.clone()
    twins = dict(zip(source.nodes, graph.nodes, strict=True))
    by_node: dict[Node, QuantLayer] = {twins[layer.node]: layer for layer in layers}
    nodes, graph.nodes = graph.nodes, []
    b, rows = Builder(graph), []
    for node in nodes:
        layer = by_node.get(node)
        if layer is not None:
            along, made = found[layer.name]
            node.set_input(1, dequantised(b, made, dtype, along, block, f"{layer.name}/weights"))
            w = layer.weights
            assert w is not None, "products have weights"
            after = made.codes.size * (1 if dtype in (I8, U8) else 0.5) + made.scale.nbytes
            rows.append(NarrowWeight(layer.name, w.shape, w.nbytes, int(after), sqnr(w, _turned(made.real, along))))
        graph.nodes.append(node)
    return NarrowModel(graph, rows)


def _with_tables(model: NarrowModel, block: int | None, keep: Sequence[str]) -> NarrowModel:
    """Tables of f32 in 8 bits, each row in blocks; rows are looked up as integers and scales, and multiplied then."""
    nodes, model.graph.nodes = model.graph.nodes, []
    b, held = Builder(model.graph), {}
    for node in nodes:
        table = node.inputs[0].const if isinstance(node.op, Gather) and node.inputs[0] is not None else None
        wanted = table is not None and table.dtype == F32 and is_large(table) and table.shape[0] > 1
        if table is None or not wanted or any(fnmatch.fnmatchcase(node.name, pattern) for pattern in keep):
            model.graph.nodes.append(node)
            continue
        if id(table) not in held:
            made = nearest(table, 8, block or table.shape[1], symmetric=True)
            held[id(table)] = b.const(made.codes.astype(I8), f"{node.name}/table"), b.const(made.scale)
            size = made.codes.size + made.scale.nbytes
            model.weights.append(NarrowWeight(node.name, table.shape, table.nbytes, size, sqnr(table, made.real)))
        rows = [b(node.op, v, node.inputs[1]) for v in held[id(table)]]
        real = b(DequantizeLinear(-1, block or table.shape[1]), *rows)
        real.name, node.output.name = node.output.name, f"{node.output.name}/before"
        model.graph.replace_uses(node.output, real)
    return model


def _turned(v: Array, along: int, lead: tuple[int, ...] = ()) -> Array:
    """Rows [n, k] with k as axis ``along``; n may be several axes."""
    return np.ascontiguousarray(np.moveaxis(v.reshape(*(lead or v.shape[:1]), -1), -1, along))


def dequantised(
    b: Builder, made: Blocks, dtype: Any, along: int, block: int | None, name: str, lead: tuple[int, ...] = ()
) -> Value:
    """The weights as their integers behind a DequantizeLinear; ``along``: the axis of blocks; lead: the other axes."""
    symmetric = dtype in (I8, STORED[4, True])
    byte = I8 if symmetric else U8
    codes = b.const(_turned(made.codes, along, lead).astype(byte).astype(dtype), name)
    scale, zero = (_turned(v, along, lead) for v in (made.scale, made.zero))
    op = DequantizeLinear(along, block or 0)
    if block is None:
        scale, zero, op = scale.reshape(-1), zero.reshape(-1), DequantizeLinear(1 - along)
    points = () if symmetric else (zero.astype(byte).astype(dtype),)
    return b(op, codes, scale.astype(np.float32), *points)
