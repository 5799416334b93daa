"""Whether rounding explains that tensors of two engines differ, for `bolt_numba.verification`.

Each tensor is computed once more in f64, of what the engine itself had before it.  An engine that is near to that is
right.  Where both are, their tensors differ because what they had differs: the model amplifies rounding.  The first
tensors at which one of them is not right are the causes, and what follows from them is no fault of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bolt_numba.base.types import I16, SequenceType
from bolt_numba.ir.graph import Graph, Node, Value, graph_attributes
from bolt_numba.ir.interpret import interpret, nodes_behind
from bolt_numba.ops.arrays.quantize import DequantizeLinear, DynamicQuantizeLinear, RangeRounded
from bolt_numba.ops.dtypes import FLOATS
from bolt_numba.ops.layers.recurrent_quantized import DynamicQuantizeLSTM
from bolt_numba.ops.layers.resize import Resize
from bolt_numba.ops.pointwise import Exp, Gelu, Log, Sigmoid, Sqrt, Tanh
from bolt_numba.peers import Feeds

LAYER_LIMITS = {"f32": 1e-4, "f16": 5e-3, "bf16": 5e-2}
"""What a precision may be off from f64 at one layer, relative to the largest value of its result."""
SHAKE_UNITS = 2.0**-21
"""How far off floats are, of themselves, in runs that show what rounding does."""
BYTES_LIMIT = 5e-2
"""The same of a layer whose operands are rounded to bytes on their way."""
COARSE_OPS = (Exp, Gelu, Log, Resize, Sigmoid, Sqrt, Tanh)
"""What LiteRT has tables or coarse places for, of 16-bit numbers."""
TO_BYTES_OPS = (RangeRounded, DynamicQuantizeLinear, DynamicQuantizeLSTM)
ROUNDING_ROOM = 16
"""How much further off than the references in f32 an engine may be: it sums in another order, or approximates."""
AT_ONCE = 256
"""Intermediate tensors held in memory at one time."""
AMPLIFIED = "rounding before it, amplified"
DRAWN = "each engine draws random numbers of its own"
INPUTS_DIFFER = "its inputs differ by rounding"
TO_BYTES = "what it is made of is rounded to bytes, and the middle of two may go to either"
DYNAMIC = "documented: LiteRT rounds what comes to this layer to bytes"
COARSE = "documented: LiteRT's functions and resizes of 16-bit numbers are several levels off"

Arrays = Mapping[str, Any]
Values = Callable[[Sequence[str]], Arrays]
"""Arrays of an engine by name."""


@dataclass(frozen=True, slots=True)
class Party:
    """One of the two that are compared.  limit: what it may be off at one layer; levels: the same of bytes."""

    name: str
    values: Values
    limit: float
    levels: float


def distance(a: Any, b: Any) -> float:
    """The largest absolute difference, also in lists; infinite where shapes or what is finite differ, and for maps."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        return max(map(distance, a, b), default=0.0)
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)) or a.shape != b.shape:
        return np.inf
    if object in (a.dtype, b.dtype):
        return 0.0 if np.array_equal(a, b) else np.inf
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return float(np.max(np.where(np.isnan(gap), np.inf, gap), initial=0.0))


def largest(array: Any) -> float:
    """The largest finite magnitude; 0 of what holds no numbers."""
    if isinstance(array, (list, tuple)):
        return max(map(largest, array), default=0.0)
    if not isinstance(array, np.ndarray) or array.dtype == object:
        return 0.0
    wide = np.abs(np.asarray(array, np.float64))
    return float(np.max(wide, where=np.isfinite(wide), initial=0.0))


class Arbiter:
    """Finds causes.  steps: of quantised tensors, by name."""

    def __init__(self, graph: Graph, feeds: Feeds, engines: Sequence[Party], steps: Mapping[str, float]) -> None:
        self.graph, self.feeds, self.engines, self.steps = graph, feeds, engines, steps
        named = zip(graph.output_names, graph.outputs, strict=True)
        self.by_name: dict[str, Value] = {v.name: v for v in graph.values()} | dict(named)
        self.drawn = _of_random(graph)
        self.causes: dict[str, str] = {}
        """By name of a tensor at which an engine is not right what is wrong."""
        self.notes: dict[str, str] = {}
        """Documented differences."""
        self.suspects: dict[str, tuple[str, list[tuple[Party, Any]]]] = {}
        """What may be causes, with the engines that are off and what they give."""
        self.ours: dict[str, Any] = {}
        """Our outputs where other tensors are returned beside them."""

    def look_at(self, names: Sequence[str], outputs: Sequence[str]) -> None:
        """Fill `causes`.  names: of tensors that both engines know, in the order of computation, then the outputs."""
        every = list(dict.fromkeys((*names, *outputs)))
        known = {id(self.by_name[name]): name for name in every}
        for start in range(0, len(every), AT_ONCE):
            some = every[start : start + AT_ONCE]
            behind = {n: nodes_behind(self.graph, [self.by_name[n]], known.keys()) for n in some}
            read = (v for nodes in behind.values() for node in nodes for v in node.inputs if v is not None)
            asked = [*some, *sorted({known[id(v)] for v in read if id(v) in known}.difference(some))]
            found = [engine.values(asked) for engine in self.engines]
            self.ours |= {name: found[0][name] for name in some if name in outputs}
            self._compare(behind, found)
        if self.suspects:  # what an engine computes of the inputs at one go may be right, too, unless these are drawn
            whole = self.of_inputs(list(self.suspects))
            for name, (why, engines) in self.suspects.items():
                if self.is_drawn(name) or not all(self.is_right(e, name, got, *whole[name]) for e, got in engines):
                    self.causes[name] = why

    def of_inputs(self, names: Sequence[str]) -> dict[str, tuple[Any, Any]]:
        """Tensors in f64, and in f32."""
        exact, rough = (interpret(self.graph, self.feeds, names, wide=wide) for wide in (True, False))
        return {name: (exact[name], rough[name]) for name in names}

    def is_right(self, engine: Party, name: str, got: Any, exact: Any, rough: Any, nodes: Sequence[Node] = ()) -> bool:
        """Whether rounding explains how far an engine is off; nodes: that make the tensor of what is held."""
        if name in self.steps or not self._has_floats(name):
            return distance(got, exact) <= engine.levels * self.steps.get(name, 0.0)
        is_rounded = any(isinstance(node.op, TO_BYTES_OPS) for node in nodes)
        limit = max(engine.limit, BYTES_LIMIT if is_rounded else 0.0)
        return distance(got, exact) <= limit * largest(exact) + ROUNDING_ROOM * distance(rough, exact)

    def reason(self, name: str) -> str:
        """Why a tensor differs at which neither is wrong."""
        if self.is_drawn(name):
            return DRAWN
        is_exact = name in self.steps or not self._has_floats(name)
        return self.notes.get(name, INPUTS_DIFFER if is_exact else AMPLIFIED)

    def is_drawn(self, name: str) -> bool:
        """Whether a tensor is computed of random numbers, so that no two engines agree on it."""
        return id(self.by_name[name]) in self.drawn

    def _has_floats(self, name: str) -> bool:
        kind = self.by_name[name].type
        return (kind.element if isinstance(kind, SequenceType) else kind).dtype in FLOATS

    def _compare(self, behind: Mapping[str, Sequence[Node]], found: Sequence[Arrays]) -> None:
        """behind: by name of a tensor the nodes that compute it of what is held."""
        ours, theirs = found
        fitting = [n for n in ours if isinstance(ours[n], np.ndarray) and np.shape(ours[n]) == np.shape(theirs[n])]
        held = [{n: arrays[n] for n in fitting} for arrays in found]
        exact = [interpret(self.graph, self.feeds, list(behind), held=each, wide=True) for each in held]
        rough = [interpret(self.graph, _shaken(self.feeds), list(behind), held=_shaken(each)) for each in held]
        for name, nodes in behind.items():
            if any(map(_draws, nodes)):
                continue
            both = list(zip(self.engines, (arrays[name] for arrays in found), strict=True))
            of_held = [(x[name], r[name]) for x, r in zip(exact, rough, strict=True)]
            wrong = [
                (e, got) for (e, got), known in zip(both, of_held, strict=True)
                if not self.is_right(e, name, got, *known, nodes)
            ]  # fmt: skip
            if any(isinstance(node.op, TO_BYTES_OPS) for node in nodes):
                self.notes[name] = TO_BYTES
            documented = _documented(nodes) if [e.name for e, _ in wrong] == ["litert"] else None
            if documented is not None:
                self.notes[name] = documented
            elif wrong:
                off = [f"{e.name} by {distance(got, x):.3g}" for (e, got), (x, _) in zip(both, of_held, strict=True)]
                self.suspects[name] = f"off from float64 of what was before it: {', '.join(off)}", wrong

    def follows(self) -> dict[str, str]:
        """By name of a tensor the first cause that it is computed of, or is itself."""
        names = {id(self.by_name[name]): name for name in self.causes}
        found: dict[int, str] = {}
        for node in self.graph.nodes:
            before = [found[id(v)] for v in node.inputs if v is not None and id(v) in found]
            for value in node.outputs:
                cause = before[0] if before else names.get(id(value))
                if cause is not None:
                    found[id(value)] = cause
        return {name: found[id(value)] for name, value in self.by_name.items() if id(value) in found}


def _of_random(graph: Graph) -> set[int]:
    """Ids of what is computed of random numbers."""
    found: set[int] = set()
    for node in graph.nodes:
        if _draws(node) or any(id(v) in found for v in node.inputs if v is not None):
            found |= set(map(id, node.outputs))
    return found


def _draws(node: Node) -> bool:
    """Whether a node makes random numbers, itself or inside."""
    return node.op.has_side_state or any(map(_of_random, graph_attributes(node.op).values()))


def _shaken(arrays: Arrays) -> Arrays:
    """Floats that are off by some units in the last place; whole numbers, which are flags, masks and sizes, are not."""
    rng, made = np.random.default_rng(0), {}
    for name, array in arrays.items():
        made[name] = array
        if isinstance(array, np.ndarray) and array.dtype in FLOATS:
            factors = 1 + SHAKE_UNITS * rng.uniform(-1, 1, array.shape)
            made[name] = np.where(array == np.rint(array), array, array * factors).astype(array.dtype)
    return made


def _documented(nodes: Sequence[Node]) -> str | None:
    """How LiteRT is known to be off at these nodes."""
    if any(map(_has_bytes_for_weights, nodes)):
        return DYNAMIC
    dtypes = {v.type.dtype for node in nodes for v in node.outputs}
    return COARSE if I16 in dtypes and any(isinstance(node.op, COARSE_OPS) for node in nodes) else None


def _has_bytes_for_weights(node: Node) -> bool:
    """As files of dynamic range quantisation have, which LiteRT rounds the operands for."""
    made = [v.node for v in node.inputs if v is not None and v.node is not None]
    stored = [n.inputs[0] for n in made if isinstance(n.op, DequantizeLinear)]
    return any(v is not None and v.const is not None for v in stored)
