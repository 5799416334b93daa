"""The graph of a decoder: tokens and a cache of keys and values to logits, for all families by their table."""

from __future__ import annotations

import math

import numpy as np

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.types import F16, F32, I32, I64, Array, Sym, TensorType
from bolt_numba.converters.gguf.container import Gguf, GgufTensor
from bolt_numba.converters.gguf.families import DecoderSizes
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.generate import Range
from bolt_numba.ops.arrays.shape import Reshape, Shape, Squeeze, Unsqueeze
from bolt_numba.ops.layers.attention.cache import GroupQueryAttention
from bolt_numba.ops.layers.attention.rotary import RotaryEmbedding
from bolt_numba.ops.layers.norm import RMSNormalization
from bolt_numba.ops.layers.products.forms import FORMS
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.products.matmul_forms import GatherForm, MatMulForm
from bolt_numba.ops.pointwise import Add, Cast, Cos, Div, Gelu, Greater, Mul, Sin, Sub, Swish, Tanh, Where

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
            y, *present = self.attention(i, self.normed(x, f"blk.{i}.attn_norm"), past)
            presents.append(present)
            x = b(Add(), x, self.normed(y, f"blk.{i}.post_attention_norm") if self.family.after else y)
            y = self.forward(i, self.normed(x, f"blk.{i}.ffn_norm"))
            x = b(Add(), x, self.normed(y, f"blk.{i}.post_ffw_norm") if self.family.after else y)
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
        if made.data is None or (form is not None and form.plain is None):
            raise InvalidModelError(f"{self.found.file}: tensor '{name}': kind: got {made.kind}, wanted floats")
        return self.b.const(made.data if form is None else form.weights(made.data)[0], name)

    def optional(self, name: str, size: int) -> Value | None:
        return self.vector(name, size) if name in self.found.tensors else None

    def product(self, x: Value, name: str, n: int, k: int, first: int = 0, whole: int = 0) -> Value:
        """X times a matrix of n rows [k], plus its bias if it has one; or those from ``first`` on of ``whole`` rows."""
        b, made = self.b, self.tensor(f"{name}.weight", whole or n, k)
        assert made.data is not None, "kinds have been looked at"
        data = made.data[first : first + n] if whole else made.data
        bias = None if whole else self.optional(f"{name}.bias", n)
        if made.kind in FORMS:
            return b(MatMulForm(made.kind), x, data, bias)
        y = b(MatMul(trans_b=True), x, data)
        return y if bias is None else b(Add(), y, bias)

    # --- parts -------------------------------------------------------------------------------------------------------

    def embedded(self, ids: Value) -> Value:
        b, table = self.b, self.tensor(EMBEDDING, 0, self.sizes.width)
        self.tokens = table.shape[0]
        x = b(GatherForm(table.kind) if table.kind in FORMS else Gather(), b.const(table.data, EMBEDDING), ids)
        return b(Mul(), x, math.sqrt(self.sizes.width)) if self.family.scaled else x

    def normed(self, x: Value, name: str) -> Value:
        size = x.type.shape[-1] if x.type.shape is not None else 0
        assert isinstance(size, int), "rows have a size"
        return self.b(RMSNormalization(epsilon=self.sizes.epsilon), x, self.vector(f"{name}.weight", size))

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
        found = self.vector(f"rope_{kind}.weight", self.sizes.turned // 2).const
        if found is None or not (found > 0).all():
            raise InvalidModelError(f"{self.found.file}: tensor 'rope_{kind}.weight': got {found}, wanted more than 0")
        return found

    def attention(self, layer: int, x: Value, past: list[Value]) -> tuple[Value, Value, Value]:
        b, sizes, at = self.b, self.sizes, f"blk.{layer}."
        heads = {"q": sizes.heads, "k": sizes.kv_heads, "v": sizes.kv_heads}
        rows, whole, done = {}, sizes.head * sum(heads.values()), 0
        for part, count in heads.items():
            n = count * sizes.head
            if self.family.fused:
                rows[part] = self.product(x, f"{at}attn_qkv", n, sizes.width, done, whole)
                done += n
            else:
                rows[part] = self.product(x, f"{at}attn_{part}", n, sizes.width)
        window = sizes.window_of(layer)
        q, k = (self.turned(rows[part], heads[part], layer, f"{at}attn_{part}_norm") for part in "qk")
        attend = GroupQueryAttention(sizes.heads, sizes.kv_heads, sizes.scale, sizes.cap, window)
        y, *present = b(attend, q, k, rows["v"], *past, self.last, self.total)
        return (self.product(y, f"{at}attn_output", sizes.width, sizes.heads * sizes.head), *present)

    def turned(self, x: Value, heads: int, layer: int, norm: str) -> Value:
        """Queries or keys, with their norm if they have one, turned by their positions."""
        b, step = self.b, self.family.unturned
        x = b(Reshape(), x, np.array([0, 0, heads, self.sizes.head]))
        if f"{norm}.weight" in self.found.tensors:
            x = self.normed(x, norm)
        if not step or (layer + 1) % step:
            turns = self.turns[self.sizes.window_of(layer) > 0]
            x = b(RotaryEmbedding(self.family.neighbours, "SHD"), x, *turns)
        return b(Reshape(), x, np.array([0, 0, heads * self.sizes.head]))

    def forward(self, layer: int, x: Value) -> Value:
        b, inner, width, at = self.b, self.sizes.inner, self.sizes.width, f"blk.{layer}.ffn_"
        if self.family.fused:
            gate, up = (self.product(x, f"{at}up", inner, width, first, 2 * inner) for first in (0, inner))
        else:
            gate, up = (self.product(x, f"{at}{part}", inner, width) for part in ("gate", "up"))
        act = b(Gelu("tanh"), gate) if self.family.gelu else b(Swish(), gate)
        return self.product(b(Mul(), act, up), f"{at}down", width, inner)

    def logits(self, x: Value, rows: Value) -> Value:
        b, cap = self.b, self.sizes.last_cap
        x = b(Gather(), b(Reshape(), x, np.array([-1, self.sizes.width])), rows)
        name = "output" if HEAD in self.found.tensors else EMBEDDING.removesuffix(".weight")
        y = self.product(self.normed(x, "output_norm"), name, self.tokens, self.sizes.width)
        return b(Mul(), b(Tanh(), b(Div(), y, cap)), cap) if cap else y
