"""The graph of a decoder: tokens and a cache of keys and values to logits, for all families by their table."""

from __future__ import annotations

import math

import numpy as np

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.types import F16, F32, I32, I64, U8, Array, Sym, TensorType
from bolt_numba.converters.gguf.container import Gguf, GgufTensor
from bolt_numba.converters.gguf.families import SHARPNESS, DecoderSizes
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.generate import Range
from bolt_numba.ops.arrays.reduce import ReduceSum, Softmax, TopK
from bolt_numba.ops.arrays.shape import Reshape, Shape, Squeeze, Unsqueeze
from bolt_numba.ops.layers.attention.cache import GroupQueryAttention
from bolt_numba.ops.layers.attention.rotary import RotaryEmbedding
from bolt_numba.ops.layers.norm import LayerNormalization, RMSNormalization
from bolt_numba.ops.layers.products.forms import FORMS
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.products.matmul_experts import MatMulExperts
from bolt_numba.ops.layers.products.matmul_forms import GatherForm, MatMulForm
from bolt_numba.ops.pointwise import (
    Add,
    Cast,
    Clip,
    Cos,
    Div,
    Gelu,
    Greater,
    Mul,
    Sigmoid,
    Sin,
    Sub,
    Swish,
    Tanh,
    Where,
)

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
BATCH, SEQUENCE, ROOM = Sym("batch"), Sym("sequence"), Sym("room")


class GgufDecoder:
    """Builds a graph once.

    Inputs: ``input_ids`` i64 [batch, sequence] · ``past_lengths`` i32 [batch], valid positions of the cache before this
    run · ``rows`` i64 [r], which of the batch * sequence positions have their logits computed · for each layer
    ``past_key_values.{i}.key`` and ``.value`` f16 [batch, kv_heads, room, head].  Outputs: ``logits`` f32 [r, tokens],
    ``present.{i}.key`` and ``.value``, which may be the memory of the past.
    taken: tensors that have been asked for.  tokens: rows of the embedding.
    """

    def __init__(self, found: Gguf, sizes: DecoderSizes) -> None:
        self.found, self.sizes, self.family = found, sizes, sizes.family
        self.graph = Graph(found.text("general.name", sizes.arch))
        self.b = Builder(self.graph)
        self.taken: set[str] = set()
        self.tokens = 0

    def build(self) -> Graph:
        """The graph.  Raises InvalidModelError for tensors that are missing or of another shape."""
        b, sizes = self.b, self.sizes
        ids = self.graph.add_input("input_ids", TensorType(I64, (BATCH, SEQUENCE)))
        self.past = self.graph.add_input("past_lengths", TensorType(I32, (BATCH,)))
        rows = self.graph.add_input("rows", TensorType(I64, (Sym("rows"),)))
        cache = TensorType(F16, (BATCH, sizes.kv_heads, ROOM, sizes.head))
        pasts = [
            [self.graph.add_input(f"past_key_values.{i}.{part}", cache) for part in ("key", "value")]
            for i in range(sizes.layers)
        ]
        self.room = b(Shape(2, 3), pasts[0][0])
        length = b(Shape(1, 2), ids)
        self.last = b(Add(), self.past, b(Cast(I32), b(Sub(), length, 1)))
        self.total = b(Cast(I32), self.room)
        new = b(Range(), np.array(0), b(Squeeze(), length, np.array([0])), np.array(1))
        self.positions = b(Add(), b(Unsqueeze(), b(Cast(I64), self.past), np.array([1])), new)
        self.turns = {
            local: self.sines(local) for local in sorted({sizes.window_of(i) > 0 for i in range(sizes.layers)})
        }
        x = self.embedded(ids)
        presents = []
        for i, past in enumerate(pasts):
            at = f"blk.{i}."
            given = self.normed(x, f"{at}attn_norm") if self.family.before else x
            has_own = f"{at}attn_norm_2.weight" in self.found.tensors
            y, *present = self.attention(i, self.normed(x, f"{at}attn_norm_2") if has_own else given, past)
            presents.append(present)
            x = self.added(x, y, f"{at}post_attention_norm")
            if not self.family.parallel:
                given = self.normed(x, f"{at}{self.family.second}") if self.family.before else x
            x = self.added(x, self.forward(given, f"{at}ffn_"), f"{at}post_ffw_norm")
        self.graph.add_output(self.logits(x, rows), "logits")
        for i, present in enumerate(presents):
            for value, part in zip(present, ("key", "value"), strict=True):
                self.graph.add_output(value, f"present.{i}.{part}")
        return self.graph

    # --- tensors -----------------------------------------------------------------------------------------------------

    def tensor(self, name: str, *shape: int) -> GgufTensor:
        """A tensor, which must be of this shape; a size of 0 stands for any."""
        self.taken.add(name)
        if name not in self.found.tensors:
            raise InvalidModelError(f"{self.found.file}: tensor '{name}': got none, wanted one of {shape}")
        made = self.found.tensors[name]
        if len(shape) != len(made.shape) or any(w not in (0, g) for w, g in zip(shape, made.shape, strict=True)):
            raise InvalidModelError(f"{self.found.file}: tensor '{name}': shape: got {made.shape}, wanted {shape}")
        return made

    def vector(self, name: str, size: int) -> Value:
        """Numbers of a row, in f32."""
        made = self.tensor(name, size)
        form = FORMS.get(made.kind)
        if made.data is None or form is None or form.plain is None:
            raise InvalidModelError(f"{self.found.file}: tensor '{name}': kind: got {made.kind}, wanted floats")
        return self.b.const(form.weights(made.data.view(U8)).reshape(-1), name)

    @staticmethod
    def content(value: Value) -> Array:
        assert value.const is not None, "a vector of the file"
        return value.const

    def optional(self, name: str, size: int) -> Value | None:
        return self.vector(name, size) if name in self.found.tensors else None

    def product(self, x: Value, name: str, n: int, k: int, first: int = 0, whole: int = 0) -> Value:
        """X times a matrix of n rows [k], plus its bias if it has one; or those from ``first`` on of ``whole`` rows."""
        b, made = self.b, self.tensor(f"{name}.weight", whole or n, k)
        assert made.data is not None, "kinds have been looked at"
        data = made.data[first : first + n] if whole else made.data
        bias = self.optional(f"{name}.bias", whole or n)
        if bias is not None and whole:
            bias = b.const(self.content(bias)[first : first + n], f"{name}.bias")
        return b(MatMul(trans_b=True) if made.kind == "F32" else MatMulForm(made.kind), x, data, bias)

    def chosen(self, x: Value, ids: Value, name: str, n: int, k: int) -> Value:
        """X [..., 1 or chosen, k] times the matrices that ``ids`` [..., chosen] choose of those of all experts."""
        made = self.tensor(f"{name}.weight", self.sizes.experts, n, k)
        assert made.data is not None, "kinds have been looked at"
        raw = made.data.view(U8).reshape(self.sizes.experts, n, -1)
        y = self.b(MatMulExperts(made.kind), x, raw, ids)
        if f"{name}.bias" not in self.found.tensors:
            return y
        bias = self.tensor(f"{name}.bias", self.sizes.experts, n)
        if bias.kind != "F32":
            raise InvalidModelError(f"{self.found.file}: tensor '{name}.bias': kind: got {bias.kind}, wanted F32")
        return self.b(Add(), y, self.b(Gather(), bias.data, ids))

    # --- parts -------------------------------------------------------------------------------------------------------

    def embedded(self, ids: Value) -> Value:
        b, table = self.b, self.tensor(EMBEDDING, 0, self.sizes.width)
        self.tokens = table.shape[0]
        x = b(Gather() if table.kind == "F32" else GatherForm(table.kind), b.const(table.data, EMBEDDING), ids)
        return self.scaled(x, math.sqrt(self.sizes.width) if self.family.scaled else self.sizes.scales["embedding"])

    def scaled(self, x: Value, by: float) -> Value:
        return x if by == 1 else self.b(Mul(), x, by)

    def normed(self, x: Value, name: str) -> Value:
        size = x.type.shape[-1] if x.type.shape is not None else 0
        assert isinstance(size, int), "rows have a size"
        weight, epsilon = self.vector(f"{name}.weight", size), self.sizes.epsilon
        if self.family.centred:
            made: Value = self.b(LayerNormalization(-1, epsilon), x, weight, self.optional(f"{name}.bias", size))
        else:
            made = self.b(RMSNormalization(epsilon=epsilon), x, weight)
        return made

    def added(self, x: Value, y: Value, norm: str) -> Value:
        y = self.normed(y, norm) if self.family.after else y
        return self.b(Add(), x, self.scaled(y, self.sizes.scales["residual"]))

    def sines(self, local: bool) -> list[Value]:
        """Cosines and sines of the new positions, [batch, sequence, pairs]."""
        b, (angles, scale) = self.b, self.sizes.angles(local)
        each: Value = b.const(angles, "angles")
        if "rope_freqs.weight" in self.found.tensors and not (local and self.family.local_base):
            each = b.const(angles / self.factors("freqs"), "angles")
        elif "rope_factors_long.weight" in self.found.tensors:
            long, short = (angles / self.factors(f"factors_{kind}") for kind in ("long", "short"))
            is_long = b(Greater(), self.room, self.sizes.first_context)
            each = b(Where(), is_long, long, short)
        at = b(Mul(), b(Unsqueeze(), b(Cast(F32), self.positions), np.array([2])), each)
        return [y if scale == 1 else b(Mul(), y, scale) for y in (b(Cos(), at), b(Sin(), at))]

    def factors(self, kind: str) -> Array:
        found = self.content(self.vector(f"rope_{kind}.weight", self.sizes.turned // 2))
        if not (found > 0).all():
            raise InvalidModelError(f"{self.found.file}: tensor 'rope_{kind}.weight': got {found}, wanted more than 0")
        return found

    def attention(self, layer: int, x: Value, past: list[Value]) -> tuple[Value, Value, Value]:
        b, sizes, at = self.b, self.sizes, f"blk.{layer}."
        heads = {"q": sizes.heads, "k": sizes.kv_heads, "v": sizes.kv_heads}
        rows, whole, done = {}, sizes.head * sum(heads.values()), 0
        for part, count in heads.items():
            n = count * sizes.head
            if f"{at}attn_qkv.weight" in self.found.tensors:
                rows[part] = self.product(x, f"{at}attn_qkv", n, sizes.width, done, whole)
                done += n
            else:
                rows[part] = self.product(x, f"{at}attn_{part}", n, sizes.width)
        window = sizes.window_of(layer)
        q, k = (self.turned(rows[part], heads[part], layer, f"{at}attn_{part}_norm") for part in "qk")
        attend = GroupQueryAttention(sizes.heads, sizes.kv_heads, sizes.scale, sizes.cap, window)
        sinks = self.optional(f"{at}attn_sinks.weight", sizes.heads)
        y, *present = b(attend, q, k, rows["v"], *past, self.last, self.total, None, sinks)
        return (self.product(y, f"{at}attn_output", sizes.width, sizes.heads * sizes.head), *present)

    def turned(self, x: Value, heads: int, layer: int, norm: str) -> Value:
        """Queries or keys, with their norm if they have one, turned by their positions."""
        b, step, made = self.b, self.family.unturned, self.found.tensors.get(f"{norm}.weight")
        is_of_all = made is not None and made.shape != (self.sizes.head,)
        x = self.normed(x, norm) if is_of_all else x
        x = b(Reshape(), x, np.array([0, 0, heads, self.sizes.head]))
        if made is not None and not is_of_all:
            x = self.normed(x, norm)
        if not step or (layer + 1) % step:
            turns = self.turns[self.sizes.window_of(layer) > 0]
            x = b(RotaryEmbedding(self.family.neighbours, "SHD"), x, *turns)
        return b(Reshape(), x, np.array([0, 0, heads * self.sizes.head]))

    def forward(self, x: Value, at: str) -> Value:
        b, sizes = self.b, self.sizes
        if not sizes.experts:
            return self.dense(x, at, sizes.inner)
        y = self.of_experts(x, at)
        if f"{at}up_shexp.weight" not in self.found.tensors:
            return y
        shared = self.dense(x, at, sizes.shared_inner, "_shexp")
        if f"{at}gate_inp_shexp.weight" in self.found.tensors:
            gate = b(Unsqueeze(), self.vector(f"{at}gate_inp_shexp.weight", sizes.width), np.array([1]))
            shared = b(Mul(), shared, b(Sigmoid(), b(MatMul(), x, gate)))
        return b(Add(), y, shared)

    def acted(self, x: Value) -> Value:
        return self.b(Gelu("tanh") if self.family.gelu else Swish(), x)

    def gated(self, gate: Value, x: Value) -> Value:
        b, bound = self.b, self.family.bound
        if not bound:
            return b(Mul(), self.acted(gate), x)
        gate = b(Swish(SHARPNESS), b(Clip(hi=bound), gate))
        return b(Mul(), gate, b(Add(), b(Clip(-bound, bound), x), 1))

    def dense(self, x: Value, at: str, inner: int, ending: str = "") -> Value:
        """A feed-forward layer that all rows go through."""
        width, up = self.sizes.width, f"{at}up{ending}"
        if self.family.fused:
            gate, value = (self.product(x, up, inner, width, first, 2 * inner) for first in (0, inner))
            y = self.gated(gate, value)
        elif self.family.gated:
            gate = self.product(x, f"{at}gate{ending}", inner, width)
            y = self.gated(gate, self.product(x, up, inner, width))
        else:
            y = self.acted(self.product(x, up, inner, width))
        return self.product(y, f"{at}down{ending}", width, inner)

    def of_experts(self, x: Value, at: str) -> Value:
        """One that has many sets of weights, of which each row chooses some."""
        b, sizes, last = self.b, self.sizes, np.array([-1])
        likely = b(Softmax(), self.product(x, f"{at}gate_inp", sizes.experts, sizes.width))
        weights, ids = b(TopK(), likely, np.array([sizes.used]))
        if self.family.summing:
            weights = b(Div(), weights, b(ReduceSum(), weights, last))
        x, inner = b(Unsqueeze(), x, np.array([-2])), sizes.expert_inner
        gate, up = (self.chosen(x, ids, f"{at}{part}_exps", inner, sizes.width) for part in ("gate", "up"))
        y = self.chosen(self.gated(gate, up), ids, f"{at}down_exps", sizes.width, inner)
        return b(ReduceSum(keepdims=False), b(Mul(), y, b(Unsqueeze(), weights, last)), np.array([-2]))

    def logits(self, x: Value, rows: Value) -> Value:
        b, cap = self.b, self.sizes.last_cap
        x = b(Gather(), b(Reshape(), x, np.array([-1, self.sizes.width])), rows)
        name = "output" if HEAD in self.found.tensors else EMBEDDING.removesuffix(".weight")
        y = self.product(self.normed(x, "output_norm"), name, self.tokens, self.sizes.width)
        scale = self.sizes.scales["logit"]
        y = self.scaled(y, 1 / scale if self.family.divided else scale)
        return b(Mul(), b(Tanh(), b(Div(), y, cap)), cap) if cap else y
