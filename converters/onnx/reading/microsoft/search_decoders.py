"""The forms of decoders that searches run again and again, and what each run takes from the one before.

`begin` gives the first state; `run` reads a graph and gives its logits and what it keeps; `after` is the next state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.types import I32, TensorType
from bolt_numba.converters.onnx.proto import onnx
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.microsoft.search_choice import State
from bolt_numba.converters.onnx.types import type_of_proto
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.reduce import CumSum, ReduceSum
from bolt_numba.ops.arrays.shape import Concat, Shape
from bolt_numba.ops.pointwise import Add, Cast, Equal, Not, Where


def declared(b: NodeBuilder, graph: onnx.GraphProto, *names: str) -> dict[str, TensorType]:
    """Types of a subgraph's inputs, whose first must have these names."""
    found = {info.name: info.type for info in graph.input}
    if list(found)[: len(names)] != list(names):
        raise b.invalid(f"inputs of '{graph.name}'", list(found), f"{', '.join(names)}, ...")
    for name in ("past_sequence_length", "beam_width", "cache_indirection"):
        b.unsupported_if(name in found, f"a decoder with an input {name}: one buffer for past and present")
    return {name: type_of_proto(t, f"{b.what}: input '{name}' of '{graph.name}'") for name, t in found.items()}


def tiled(b: NodeBuilder, x: Value, beams: Value | None) -> Value:
    """Each row as often as an item has beams, side by side."""
    if beams is None:
        return x
    rest = range(1, b.rank_of(x))
    wide = b.expanded(b.unsqueezed(x, 1), b.sizes_of(x, [0]), b.unsqueezed(beams, 0), b.sizes_of(x, rest))
    return b.reshaped(wide, [-1], b.sizes_of(x, rest))


def nothing_past(b: NodeBuilder, t: TensorType, rows: Any, name: str, axis: int) -> Value:
    """An empty past of a declared type, whose rows lie along an axis and whose length is the last but one."""
    dims: list[Any] = list(t.shape or ())
    if len(dims) < 4 or any(not isinstance(dims[i], int) for i in range(len(dims)) if i not in (axis, len(dims) - 2)):
        raise b.unsupported(f"input {name} of a decoder, declared as {t}")
    dims[axis], dims[-2] = rows, 0
    return b.expanded(np.zeros((), t.dtype), dims)


class Gpt:
    """input_ids, position_ids, attention_mask, past_0, ... -> logits, present_0, ...

    Its state: `ids` and `position`, what the next run takes; `next` [rows, 1], the position behind; `mask`; the pasts
    [2, rows, heads, length, size].
    """

    axis = 1

    def __init__(self, b: NodeBuilder, graph: onnx.GraphProto) -> None:
        self.types = declared(b, graph, "input_ids", "position_ids", "attention_mask", "past_0")
        self.pasts = list(self.types)[3:]
        self.forms = {"ids": "rows seq", "position": "rows seq", "next": "rows 1", "mask": "rows total"}
        self.forms |= dict.fromkeys(self.pasts, "2 rows heads past size")

    def begin(self, b: NodeBuilder, ids: Value, mask: Value | None, pad: int, beams: Value | None) -> State:
        seen = b(Cast(I32), b(Not(), b(Equal(), ids, pad)))
        place = b(Where(), b(Equal(), seen, 0), np.array(0, I32), b(CumSum(True), seen, np.array(1)))
        behind = b(ReduceSum(), seen, np.array([1]))
        state = {"ids": ids, "position": place, "next": behind, "mask": seen if mask is None else mask}
        state = {name: tiled(b, x, beams) for name, x in state.items()}
        rows = b.size_of(state["ids"], 0)
        return state | {name: nothing_past(b, self.types[name], rows, name, 1) for name in self.pasts}

    def run(self, b: NodeBuilder, graph: onnx.GraphProto, state: State) -> tuple[Any, list[Any]]:
        inputs = [state[name] for name in ("ids", "position", "mask", *self.pasts)]
        logits, *kept = outputs_of(b, graph, inputs, 1 + len(self.pasts))
        return logits, kept

    def after(self, b: NodeBuilder, state: State, kept: Sequence[Any], words: Any, rows: Any) -> State:
        """words: [rows] i32 that were chosen.  rows: which rows they follow; None: each its own."""
        word, one = b.unsqueezed(words, 1), np.array(1, I32)
        moved = kept if rows is None else [b(Gather(self.axis), x, rows) for x in kept]
        mask = b(Concat(1), state["mask"], b.expanded(one, b(Shape(), word)))
        made = {"ids": word, "position": state["next"], "next": b(Add(), state["next"], one), "mask": mask}
        return made | dict(zip(self.pasts, moved, strict=True))


class T5Like:
    """input_ids, encoder_..., past_key_self_0, ..., past_key_cross_0, ... -> logits, present_key_self_0, ...

    Of the encoder it takes encoder_attention_mask, where that has one, and encoder_hidden_states, or neither.
    Its state: `ids` [rows, 1], and what it keeps of itself, [rows, heads, length, size].  What it keeps of the encoder
    is the same in all steps.
    """

    def __init__(self, b: NodeBuilder, graph: onnx.GraphProto, masked: bool) -> None:
        first = ("input_ids", *["encoder_attention_mask"] * masked)
        self.types = declared(b, graph, *first)
        given = list(self.types)[1:]
        self.fixed = [name for name in given[:2] if name.startswith("encoder_")]
        pasts = given[len(self.fixed) :]
        half = len(pasts) // 2
        self.pasts, self.cross = pasts[:half], pasts[half:]
        if not pasts or len(pasts) % 4:
            raise b.invalid(f"inputs of '{graph.name}'", given, "four for each layer behind those of the encoder")
        self.whole = (self.types["input_ids"].shape or (0, 0))[1:] != (1,)
        self.forms = {"ids": "rows 1"} | dict.fromkeys(self.pasts, "rows heads past size")
        self.held: dict[str, Value] = {}

    def encode(
        self, b: NodeBuilder, encoder: onnx.GraphProto, inputs: Sequence[Value], mask: Value | None, starts: Value,
        beams: Value | None,
    ) -> tuple[State, tuple[Any, list[Any]] | None]:  # fmt: skip
        """The state before the first step, and what that step gives where the encoder runs it.

        starts: [n, words] i32 the first words.
        """
        first = len(encoder.input) > len(inputs)
        names = ["encoder_hidden_states"] * first + self.pasts * first + self.cross
        logits, *made = [None] * (not first) + outputs_of(b, encoder, [*inputs, *[starts] * first], first + len(names))
        found = {name: tiled(b, x, beams) for name, x in zip(names, made, strict=True)}
        if mask is not None:
            found["encoder_attention_mask"] = tiled(b, mask, beams)
        for name in (*self.fixed, *self.cross):
            if name not in found:
                raise b.invalid(f"outputs of '{encoder.name}'", [o.name for o in encoder.output], f"{name} among them")
            self.held[name] = found[name]
        words = tiled(b, starts, beams)
        state = {"ids": words, "sequences": words}
        if first:
            return state, (tiled(b, logits, beams), [found[name] for name in self.pasts])
        rows = b.size_of(words, 0)
        return state | {name: nothing_past(b, self.types[name], rows, name, 0) for name in self.pasts}, None

    def run(self, b: NodeBuilder, graph: onnx.GraphProto, state: State) -> tuple[Any, list[Any]]:
        ids = state["sequences"] if self.whole else state["ids"]
        fixed, cross = ([b.here(self.held[name]) for name in names] for names in (self.fixed, self.cross))
        pasts = [state[name] for name in self.pasts]
        logits, *kept = outputs_of(b, graph, [ids, *fixed, *pasts, *cross], 1 + len(pasts))
        return logits, kept

    def after(self, b: NodeBuilder, state: State, kept: Sequence[Any], words: Any, rows: Any) -> State:
        moved = [b(Gather(0), x, rows) for x in kept]
        return {"ids": b.unsqueezed(words, 1)} | dict(zip(self.pasts, moved, strict=True))


def outputs_of(b: NodeBuilder, graph: onnx.GraphProto, inputs: Sequence[Value], count: int) -> list[Any]:
    """Results of a subgraph that is read in place, so many."""
    made = b.inline(graph, *inputs)
    if len(made) != count or None in made:
        raise b.invalid(f"outputs of '{graph.name}'", [o.name for o in graph.output], f"{count} tensors")
    return made
