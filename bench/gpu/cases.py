"""What is timed: one operator each, with the library call that does the same, its work, and the wanted share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.arrays.reduce import Softmax
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.ops.layers.attention.attention import FusedAttention
from bolt_numba.ops.layers.norm import LayerNormalization
from bolt_numba.ops.layers.pool import MaxPool
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.integer_products import MatMulInteger
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Relu
from bolt_numba.ops.registry import Op
from bolt_numba.types import BF16, F16, F32, I8, AnyDType, Array, TensorType, dtype_name

BURST = 10
"""Calls between two events, ours and the library's."""
Peer = Callable[[Any, Sequence[Any]], Callable[[], Any]]
"""``peer(torch, tensors)``: the call to time, on tensors of the same content on the GPU."""


@dataclass(frozen=True)
class Case:
    """One operator on operands of these types.

    work: floating-point operations, or bytes moved (``unit``: "flop" or "byte").  bar: wanted part of the library's
    speed, or of the bandwidth of a copy.  weights: operands that are constants.  numerics: of our session.
    maker: the only one that our session may take, "" for the best.
    """

    name: str
    family: str
    op: Op
    operands: tuple[tuple[tuple[int, ...], AnyDType], ...]
    work: float
    bar: float
    peer: Peer
    unit: str = "flop"
    weights: tuple[int, ...] = ()
    numerics: str = "default"
    maker: str = ""

    def arrays(self) -> list[Array]:
        """Normal deviates, or whole numbers where operands are integers."""
        rng = np.random.default_rng(len(self.name))
        made = []
        for shape, dtype in self.operands:
            if np.dtype(dtype).kind in "iu":
                made.append(rng.integers(-128, 128, shape).astype(dtype))
            else:
                made.append(rng.standard_normal(shape, np.float32).astype(dtype))
        return made

    def graph(self, arrays: Sequence[Array]) -> Graph:
        """The operator alone; operands that are no weights are inputs ``x0``, ``x1``..."""
        graph = Graph(self.name)
        build = Builder(graph)
        given: list[Any] = []
        for i, ((shape, dtype), array) in enumerate(zip(self.operands, arrays, strict=True)):
            given.append(array if i in self.weights else graph.add_input(f"x{i}", TensorType(dtype, shape)))
        graph.add_output(build(self.op, *given), "y")
        return graph


def _product(
    m: int, n: int, k: int, dtype: AnyDType, bar: float, numerics: str = "default", maker: str = ""
) -> Case:
    def peer(torch: Any, tensors: Sequence[Any]) -> Callable[[], Any]:
        a, b = tensors
        torch.backends.cuda.matmul.allow_tf32 = numerics == "fast"
        return functools.partial(torch.matmul, a, b.t())

    kind = "tf32" if numerics == "fast" else dtype_name(dtype)
    operands, name = (((m, k), dtype), ((n, k), dtype)), f"{kind} {m}x{n}x{k}" + (f", {maker}" if maker else "")
    return Case(
        name, "product", MatMul(trans_b=True), operands, 2.0 * m * n * k, bar, peer, weights=(1,), numerics=numerics,
        maker=maker,
    )  # fmt: skip


def _bytes_product(size: int) -> Case:
    def peer(torch: Any, tensors: Sequence[Any]) -> Callable[[], Any]:
        a, b = tensors
        return functools.partial(torch._int_mm, a, b.t().contiguous().t())

    operands = (((size, size), I8), ((size, size), I8))
    return Case(f"i8 {size}", "product", MatMulInteger(), operands, 2.0 * size**3, 0.75, peer, weights=(1,))


def _convolution(batch: int, side: int, c: int, out: int, kernel: int, stride: int = 1, group: int = 1) -> Case:
    pad = kernel // 2

    def peer(torch: Any, tensors: Sequence[Any]) -> Callable[[], Any]:
        torch.backends.cudnn.benchmark = True
        x, w = tensors
        x = x.permute(0, 3, 1, 2)  # the same memory, channels last
        w = w.contiguous(memory_format=torch.channels_last)
        return functools.partial(torch.nn.functional.conv2d, x, w, None, stride, pad, 1, group)

    op = Conv(strides=(stride, stride), pads=(pad,) * 4, group=group, layout="NHWC")
    operands = (((batch, side, side, c), F16), ((out, c // group, kernel, kernel), F16))
    work = 2.0 * batch * (side // stride) ** 2 * out * c // group * kernel**2
    name = f"{batch}x{side}x{side}x{c} -> {out}, {kernel}x{kernel}/{stride}" + (", depthwise" if group > 1 else "")
    return Case(name, "convolution", op, operands, work, 0.7, peer, weights=(1,))


def _attention(batch: int, heads: int, length: int, width: int, causal: bool) -> Case:
    def peer(torch: Any, tensors: Sequence[Any]) -> Callable[[], Any]:
        attend = torch.nn.functional.scaled_dot_product_attention
        backend = torch.nn.attention.SDPBackend.FLASH_ATTENTION

        def run() -> Any:
            with torch.nn.attention.sdpa_kernel(backend):
                return attend(*tensors, is_causal=causal)

        return run

    shape = (batch, heads, length, width)
    work = 4.0 * batch * heads * length**2 * width / (2 if causal else 1)
    name = f"{batch}x{heads}x{length}x{width}" + (", causal" if causal else "")
    op = FusedAttention(scale=width**-0.5, causal=causal)
    return Case(name, "attention", op, ((shape, F16),) * 3, work, 1.0, peer)


def _moving(name: str, op: Op, shapes: Sequence[tuple[int, ...]], dtype: AnyDType, made: int, call: str) -> Case:
    """An operator that memory bounds; call: an expression of torch and the operands x, y.  made: elements it writes."""

    def peer(torch: Any, tensors: Sequence[Any]) -> Callable[[], Any]:
        scope = {"torch": torch, "F": torch.nn.functional, **dict(zip("xyz", tensors, strict=False))}
        code = compile(call, f"<{name}>", "eval")
        return lambda: eval(code, scope)

    nbytes = (sum(int(np.prod(s)) for s in shapes) + made) * np.dtype(dtype).itemsize
    operands = tuple((s, dtype) for s in shapes)
    return Case(f"{name} {dtype_name(dtype)}", "memory", op, operands, nbytes, 0.9, peer, "byte")


def _memory() -> list[Case]:
    rows, width = 1 << 16, 1024
    image = (64, 112, 112, 64)
    found = []
    for dtype in (F32, F16):
        found += [
            _moving("relu", Relu(), [(rows, width)], dtype, rows * width, "torch.relu(x)"),
            _moving("add", Add(), [(rows, width)] * 2, dtype, rows * width, "torch.add(x, y)"),
            _moving("softmax", Softmax(axis=-1), [(rows, width)], dtype, rows * width, "torch.softmax(x, 1)"),
            _moving(
                "layer norm", LayerNormalization(), [(rows, width), (width,), (width,)], dtype, rows * width,
                "F.layer_norm(x, y.shape, y, z)",
            ),
            _moving("transpose", Transpose((1, 0)), [(rows, width)], dtype, rows * width, "x.t().contiguous()"),
        ]  # fmt: skip
    pool = MaxPool(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), layout="NHWC")
    call = "F.max_pool2d(x.permute(0, 3, 1, 2), 3, 2, 1)"
    found.append(_moving("max pool", pool, [image], F16, 64 * 56 * 56 * 64, call))
    return found


def cases(small: bool) -> list[Case]:
    """All cases; small: a few that the simulator runs in seconds, to see that the script works."""
    if small:
        return [
            _product(64, 64, 64, F16, 0.85),
            _product(64, 64, 64, F16, 0.6, maker="matmul_halves"),
            _product(32, 48, 16, F32, 0.85),
            _convolution(1, 8, 16, 16, 3),
            _attention(1, 2, 64, 64, True),
            _moving("softmax", Softmax(axis=-1), [(8, 64)], F16, 8 * 64, "torch.softmax(x, 1)"),
        ]
    sides = (1024, 2048, 4096, 8192)
    products = [_product(s, s, s, F16, 0.85) for s in sides]
    products += [_product(s, s, s, F16, 0.6, maker="matmul_halves") for s in sides]  # not by warp groups
    products += [_product(4096, 4096, 4096, BF16, 0.85), _product(4096, 4096, 4096, F32, 0.85)]
    products += [_product(4096, 4096, 4096, F32, 0.8, "fast"), _bytes_product(4096)]
    products += [_product(512, 3072, 768, F16, 0.85), _product(16, 4096, 4096, F16, 0.88)]
    layers = [(56, 64, 64, 3), (28, 128, 128, 3), (14, 256, 256, 3), (7, 512, 512, 3)]
    layers += [(56, 256, 64, 1), (14, 256, 1024, 1)]
    convolutions = [_convolution(64, *layer) for layer in layers]
    convolutions += [_convolution(64, 224, 3, 64, 7, 2), _convolution(64, 56, 96, 96, 3, 1, 96)]
    sizes = ((2048, 64), (2048, 128), (8192, 128))
    attention = [_attention(4, 16, n, d, causal) for n, d in sizes for causal in (False, True)]
    return [*products, *convolutions, *attention, *_memory()]


__all__ = ["Case", "cases"]
