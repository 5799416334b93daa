"""Readers of onnxruntime's mixtures of experts and products with weights of 4-bit floats (domain com.microsoft)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.types import BF16, F16, F32, U8, AnyDType, Array
from bolt_numba.converters.builder import ints
from bolt_numba.converters.forms import Forms
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.microsoft.quantized import matmul_nbits
from bolt_numba.converters.onnx.reading.registry import microsoft
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather, GatherElements, ScatterElements
from bolt_numba.ops.arrays.reduce import ReduceSum, Softmax, TopK
from bolt_numba.ops.arrays.shape import Identity, Reshape, Shape
from bolt_numba.ops.dtypes import FLOATS
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.products.matmul_bits import unpacked
from bolt_numba.ops.layers.products.matmul_experts import MatMulExperts
from bolt_numba.ops.pointwise import Add, Cast, Clip, Div, Gelu, Min, Mul, Relu, Swish
from bolt_numba.ops.shapes import product

Product = Callable[[Any, int], Any]
"""Rows times the weights of one expert, its bias included."""
Chosen = Callable[[Any, Any], Any]
"""Rows [n, 1 or k, size] times the weights of the experts [n, k] that they choose, biases included."""
Gates = tuple[Any, Any]
"""The experts of each row [rows, k], and how much each of them adds to it, f32."""
CODES = {4: "Q4_0", 8: "Q8_0"}
"""Forms of weights of so many bits, whose scales are f16."""
GROUP = 32
"""Weights of such a scale."""
PAYS_CHOOSING = 8
"""Experts for each that a row chooses, from which chosen products of floats are faster than whole ones, of any rows."""

_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_FP4 = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
_MEANINGS = tuple(np.array(v, F32) for v in ((*_FP4, *(-v for v in _FP4)), _NF4))
"""What 4 bits mean: FP4, then NF4.  Source: QLoRA, appendix E, and its library."""


@microsoft("MatMulBnb4")
def matmul_bnb4(
    b: NodeBuilder,
    x: Value,
    packed: Value,
    absmax: Value,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: bool = True,
) -> Value:
    """Products with w^T, where w [N, K] is written row after row in blocks of one scale, high halves of bytes first."""
    b.unsupported_if(not transB, "transB 0")
    if quant_type not in (0, 1) or block_size < 1:
        raise b.invalid("quant_type and block_size", (quant_type, block_size), "0 or 1, and a size")
    held, scales = (b.known_array(v, "weights and absmax").reshape(-1) for v in (packed, absmax))
    wanted = -(-N * K // 2), -(-N * K // block_size)
    if min(N, K) < 0 or held.dtype != np.uint8 or (len(held), len(scales)) != wanted:
        raise b.invalid("weights and absmax", (packed.type, absmax.type), f"{wanted} elements for N {N} and K {K}")
    ask(16 * N * K, b.what)
    meant = _MEANINGS[quant_type][np.stack([held >> 4, held & 15], axis=-1).reshape(-1)[: N * K]]
    weight = (meant * scales.astype(F32)[np.arange(N * K) // block_size]).reshape(N, K).astype(x.type.dtype)
    return b(MatMul(trans_b=True), x, b.const(weight))


@microsoft("MoE")
def moe(
    b: NodeBuilder,
    x: Value,
    router: Value,
    w1: Value,
    b1: Value | None,
    w2: Value,
    b2: Value | None = None,
    w3: Value | None = None,
    b3: Value | None = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    k: int = 1,
    normalize_routing_weights: bool = False,
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    swiglu_limit_after_activation: int = 0,
    use_sparse_mixer: int = 0,
) -> Value:
    """The k likeliest experts of each row, weighed by their probabilities.  Weights: [experts, columns, rows]."""
    if use_sparse_mixer or swiglu_limit_after_activation:
        raise b.unsupported("use_sparse_mixer or swiglu_limit_after_activation")
    fused = activation_type == "swiglu" and swiglu_fusion > 0
    sizes = _sizes(b, x, router, w1, b.static_dim(w2, 2), k, fused)
    dtype = x.type.dtype
    sizes.want("fc1_experts_weights", w1, "experts first width", dtype)
    sizes.want("fc2_experts_weights", w2, "experts width inner", dtype)
    sizes.want("fc3_experts_weights", w3, "experts inner width", dtype)
    _want_biases(sizes, dtype, b1, b2, b3)
    gates = _gates(b, router, None, k, normalize_routing_weights)
    activated = _activation(b, activation_type, swiglu_fusion, activation_alpha, activation_beta, swiglu_limit)
    held = ((w1, b1), (w2, b2), (w3, b3))
    is_choice = b.static_dim(w1, 0) >= PAYS_CHOOSING * k
    stored = [_plain(w) if is_choice and w is not None else None for w, _ in held]
    layers = [w and _dense(b, w, bias) for w, bias in held]
    return _mixture(b, x, router, gates, held, stored, layers, activated)


@microsoft("QMoE")
def qmoe(
    b: NodeBuilder,
    x: Value,
    router: Value,
    w1: Value,
    s1: Value | None,
    b1: Value | None,
    w2: Value,
    s2: Value | None,
    b2: Value | None = None,
    w3: Value | None = None,
    s3: Value | None = None,
    b3: Value | None = None,
    z1: Value | None = None,
    z2: Value | None = None,
    z3: Value | None = None,
    router_weights: Value | None = None,
    *,
    accuracy_level: int = 0,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    block_size: int = 0,
    expert_weight_bits: int = 4,
    fc1_expert_weight_bits: int = 0,
    fc2_expert_weight_bits: int = 0,
    fc3_expert_weight_bits: int = 0,
    k: int = 1,
    normalize_routing_weights: bool = False,
    quant_type: str = "int",
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    swiglu_limit_after_activation: int = 0,
    use_sparse_mixer: int = 0,
    weights_prepacked: int = -1,
) -> Value:
    """`moe` over weights of 2, 4 or 8 bits, as `MatMulNBits` has them; without blocks a row has one scale.

    The probabilities of the chosen experts always add up to 1, unless ``router_weights`` takes their place.
    """
    bits = [v or expert_weight_bits for v in (fc1_expert_weight_bits, fc2_expert_weight_bits, fc3_expert_weight_bits)]
    if quant_type != "int" or use_sparse_mixer or swiglu_limit_after_activation or not {*bits} <= {2, 4, 8}:
        raise b.unsupported(f"quant_type {quant_type}, {bits} bits, use_sparse_mixer or swiglu_limit_after_activation")
    rows = ((w1, s1, z1, b1), (w2, s2, z2, b2), (w3, s3, z3, b3))
    inner, fused = b.static_dim(w2, 2) * 8 // bits[1], activation_type == "swiglu" and swiglu_fusion > 0
    sizes = _sizes(b, x, router, w1, inner, k, fused)
    sizes.want("router_weights", router_weights, "rows experts", router.type.dtype)
    gates = _gates(b, router, router_weights, k, router_weights is None or normalize_routing_weights)
    activated = _activation(b, activation_type, swiglu_fusion, activation_alpha, activation_beta, swiglu_limit)
    return _mixture(b, x, router, gates, rows, *_layers(b, sizes, x.type.dtype, rows, bits, block_size), activated)


def _sizes(b: NodeBuilder, x: Value, router: Value, w1: Value, inner: int, k: int, fused: bool) -> Forms:
    """The sizes of a mixture, once those of its rows are seen to agree.  fused: the first weights hold gates, too."""
    experts, width = b.static_dim(w1, 0), b.static_dim(x, -1)
    made = Forms(b, experts=experts, width=width, inner=inner, first=2 * inner if fused else inner)
    made.want("input", x, "rows width|n length width", *FLOATS)
    made.known["rows"] = product((x.type.shape or ())[:-1])
    made.want("router_probs", router, "rows experts", x.type.dtype)
    b.invalid_if(not 1 <= k <= experts, "k", k, f"1 to {experts}, the number of experts")
    return made


def _want_biases(sizes: Forms, dtype: AnyDType, first: Value | None, second: Value | None, third: Value | None) -> None:
    sizes.want("fc1_experts_bias", first, "experts first", dtype)
    sizes.want("fc2_experts_bias", second, "experts width", dtype)
    sizes.want("fc3_experts_bias", third, "experts inner", dtype)


def _layers(
    b: NodeBuilder, sizes: Forms, dtype: AnyDType, rows: Any, bits: Sequence[int], block: int
) -> tuple[list[Any], list[Any]]:
    """What `_packed` gives, and products, of weights, scales, zero points and biases that are seen to agree."""
    _want_biases(sizes, dtype, *(row[3] for row in rows))
    b.invalid_if(block < 0, "block_size", block, "0 or more")
    for i, (held, n) in enumerate(zip(rows, bits, strict=True), 1):
        if held[0] is not None:
            _want_bits(b, sizes, f"fc{i}", held[:3], n, block)
    stored = [row[0] and _packed(b, row, n, block) for row, n in zip(rows, bits, strict=True)]
    return stored, [row[0] and _of_bits(b, row, n, block) for row, n in zip(rows, bits, strict=True)]


def _want_bits(b: NodeBuilder, sizes: Forms, name: str, operands: Any, bits: int, block: int) -> None:
    """Hold weights of few bits, their scales and zero points against the sizes of a mixture."""
    weights, scales, zeros = operands
    names = {"fc1": ("first", "width"), "fc2": ("width", "inner"), "fc3": ("inner", "width")}[name]
    columns, depth = (sizes.known[n] for n in names)
    blocks = -(-depth // block) if block else 1
    held = Forms(b, experts=sizes.known["experts"], columns=columns, bytes=depth * bits // 8, blocks=blocks,
                 packed=-(-blocks * bits // 8) if block else -(-columns * bits // 8))  # fmt: skip
    held.want(f"{name}_experts_weights", weights, "experts columns bytes", U8)
    if scales is None:
        raise b.invalid(f"{name}_scales", "none", "one for each row or block of weights")
    held.want(f"{name}_scales", scales, "experts columns blocks" if block else "experts columns", *FLOATS)
    held.want(f"{name}_zero_points", zeros, "experts columns packed" if block else "experts packed", U8)


def _gates(b: NodeBuilder, router: Value, weights: Value | None, k: int, normalised: bool) -> Gates:
    scores = b(Cast(F32), router)
    _, experts = b.node(TopK(), scores, ints([k])).outputs
    found = b(GatherElements(1), b(Softmax(-1), scores) if weights is None else b(Cast(F32), weights), experts)
    return experts, b(Div(), found, b(ReduceSum(), found, ints([1]))) if normalised else found


def _activation(
    b: NodeBuilder, kind: str, fusion: int, alpha: float, beta: float, limit: float | None
) -> Callable[[Any, Any], Any]:
    """A function of the first product and, for gates that are apart, the third."""
    plain = {"relu": Relu(), "gelu": Gelu("tanh"), "silu": Swish(), "identity": Identity()}
    if kind in plain:
        return lambda h, third: b(plain[kind], h)
    b.unsupported_if(kind != "swiglu" or fusion not in (0, 1, 2), f"activation {kind}, swiglu_fusion {fusion}")

    def swiglu(h: Any, third: Any) -> Any:
        if fusion == 0:
            if third is None:
                raise b.invalid("fc3_experts_weights", "none", "the gate's other factor")
            gate, linear = h, third
        elif fusion == 1:
            gate, linear = (b.sliced(h, -1, start, step=2) for start in (0, 1))
        else:
            half = b.static_dim(h, -1) // 2
            gate, linear = b.sliced(h, -1, 0, half), b.sliced(h, -1, half)
        if limit is not None:
            gate, linear = b(Min(), gate, limit), b(Clip(-limit, limit), linear)
        return b(Mul(), b(Swish(alpha), gate), b(Add(), linear, beta))

    return swiglu


def _dense(b: NodeBuilder, weights: Value, bias: Value | None) -> Product:
    """Products with weights [experts, columns, rows] of floats."""

    def product(x: Any, expert: int) -> Any:
        y = b(MatMul(trans_b=True), x, _row(b, weights, expert))
        return y if bias is None else b(Add(), y, _row(b, bias, expert))

    return product


def _row(b: NodeBuilder, v: Value, place: int) -> Value:
    return b.const(v.const[place]) if v.const is not None else b(Gather(0), v, np.array(place))


def _of_bits(b: NodeBuilder, operands: Any, bits: int, block: int) -> Product:
    """Products with weights [experts, columns, rows * bits / 8] of few bits, their scales, zero points and bias."""
    packed, scales, zeros, bias = operands
    codes, scale = (b.known_array(v, "weights of experts") for v in (packed, scales))
    points: Array | None = None if zeros is None else b.known_array(zeros, "zero points")
    columns, depth = codes.shape[1], codes.shape[2] * 8 // bits
    form = columns, -(-depth // (block or depth)), -1

    def product(x: Any, expert: int) -> Any:
        if points is None:
            held = None
        elif block:
            held = b.const(points[expert])
        else:  # those of all columns lie one behind the other
            held = b.const(unpacked(points[expert], bits)[:columns].astype(F32))
        return matmul_nbits(
            b, x, b.const(codes[expert].reshape(form)), b.const(scale[expert]), held, None,
            None if bias is None else _row(b, bias, expert), K=depth, N=columns, bits=bits, block_size=block or depth,
        )  # fmt: skip

    return product


def _plain(weights: Value) -> tuple[str, Array] | None:
    """Constant floats as `MatMulExperts` has them."""
    held, form = weights.const, {F32: "F32", F16: "F16", BF16: "BF16"}.get(weights.type.dtype)
    return None if held is None or form is None else (form, np.ascontiguousarray(held).view(U8))


def _packed(b: NodeBuilder, operands: Any, bits: int, block: int) -> tuple[str, Array] | None:
    """Codes and scales as `MatMulExperts` has them, where it has such: without zero points, scales that are f16."""
    codes, scales = (b.known_array(v, "weights of experts") for v in operands[:2])
    experts, n, depth = codes.shape[0], codes.shape[1], codes.shape[2] * 8 // bits
    with np.errstate(over="ignore"):
        halves = scales.astype(F16).reshape(experts, n, -1)
    if operands[2] is not None or bits not in CODES or depth % GROUP or block % GROUP:
        return None
    if not np.array_equal(halves.astype(F32), scales.astype(F32).reshape(halves.shape)):
        return None
    raw = np.empty((experts, n, depth // GROUP, 2 + GROUP * bits // 8), U8)
    raw[..., :2] = np.repeat(halves, (block or depth) // GROUP, axis=2)[:, :, : depth // GROUP, None].view(U8)
    for made, own in zip(raw, codes, strict=True):
        if bits == 8:
            made[..., 2:] = own.reshape(n, -1, GROUP) ^ 128
        else:  # the first half of a group in the low bits
            low, high = unpacked(own, bits).reshape(n, -1, 2, GROUP // 2).transpose(2, 0, 1, 3)
            made[..., 2:] = low | high << 4
    return CODES[bits], raw.reshape(experts, n, -1)


def _chosen(b: NodeBuilder, stored: tuple[str, Array] | None, bias: Value | None) -> Chosen | None:
    if stored is None:
        return None
    form, raw = stored
    held = b.const(raw)

    def product(x: Any, experts: Any) -> Any:
        y = b(MatMulExperts(form), x, held, experts)
        return y if bias is None else b(Add(), y, b(Gather(0), b.to(bias, F32), experts))

    return product


def _mixture(
    b: NodeBuilder, x: Value, router: Value, gates: Gates, held: Any, stored: Any, layers: Any, activated: Any
) -> Value:
    """By products with chosen weights where all are stored for these.  held: weights, …, bias of each layer."""
    if all(made or row[0] is None for row, made in zip(held, stored, strict=True)):
        chosen = [_chosen(b, made, row[-1]) for row, made in zip(held, stored, strict=True)]
        return _of_chosen(b, x, gates, chosen, activated)
    return _mixed(b, x, _spread(b, router, gates), b.static_dim(held[0][0], 0), layers, activated)


def _of_chosen(
    b: NodeBuilder, x: Value, gates: Gates, layers: Sequence[Any], activated: Callable[[Any, Any], Any]
) -> Value:
    """The sum of what the experts that each row of x [..., rows, width] chooses make of it, computed in f32."""
    (first, second, third), (experts, shares) = layers, gates
    rows = b.to(b.reshaped(x, b.sizes_of(experts, [0]), [1, b.static_dim(x, -1)]), F32)
    hidden = activated(first(rows, experts), None if third is None else third(rows, experts))
    parts = b(Mul(), second(hidden, experts), b.unsqueezed(shares, 2))
    return b(Reshape(), b.to(b(ReduceSum(keepdims=False), parts, ints([1])), x.type.dtype), b(Shape(), x))


def _spread(b: NodeBuilder, router: Value, gates: Gates) -> Value:
    """How much each expert adds to each row: [rows, experts], 0 for those that are not chosen."""
    zeros = b.expanded(np.zeros((), F32), b(Shape(), router))
    return b(Cast(router.type.dtype), b(ScatterElements(1), zeros, *gates))


def _mixed(
    b: NodeBuilder, x: Value, gates: Any, experts: int, layers: Any, activated: Callable[[Any, Any], Any]
) -> Value:
    """The sum of what experts make of the rows of x [..., rows, width].  All compute all rows."""
    first, second, third = layers
    rows = b.reshaped(x, b.sizes_of(gates, [0]), [b.static_dim(x, -1)])
    total: Any = None
    for expert in range(experts):
        hidden = activated(first(rows, expert), None if third is None else third(rows, expert))
        part = b(Mul(), second(hidden, expert), b.sliced(gates, 1, expert, expert + 1))
        total = part if total is None else b(Add(), total, part)
    return b(Reshape(), total, b(Shape(), x))
