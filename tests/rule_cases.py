"""One small graph for every rewrite rule, and what the rule alone must make of it; used by test_rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bolt_numba import ops
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.decomposed.decompose import decompose
from bolt_numba.ops.registry import OPS
from bolt_numba.types import BOOL, F32, I8, I64, Array, Sym, TensorType

ops.load_all()


def o(name: str, *args: Any, **attributes: Any) -> Any:
    """An operator by its registry name."""
    maker: Any = OPS[name]
    return maker(*args, **attributes)


def f32(*numbers: float) -> Array:
    return np.array(numbers, F32)


def i64(*numbers: int) -> Array:
    return np.array(numbers, I64)


def whole(*shape: int, seed: int = 0) -> Array:
    """Small whole numbers as f32: every sum of them is exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(F32)


@dataclass(frozen=True)
class Case:
    """A graph, the rule that must fire on it, the operators afterwards, and the tolerance of its values."""

    rule: str
    build: Callable[..., Any]
    shapes: dict[str, tuple[Any, ...]]
    after: str
    tolerance: float

    def graph(self) -> Graph:
        return graph_of(self.build, self.shapes)

    def __str__(self) -> str:
        return f"{self.rule}-{self.build.__name__}"


def graph_of(build: Callable[..., Any], shapes: dict[str, tuple[Any, ...]]) -> Graph:
    """Inputs of the given shapes (a str is a symbol, a leading dtype counts), one output for each value built."""
    graph = Graph("case")
    values = []
    for name, dims in shapes.items():
        dtype = F32 if not dims or not isinstance(dims[0], np.dtype) else dims[0]
        shape = [Sym(d) if isinstance(d, str) else d for d in dims if not isinstance(d, np.dtype)]
        values.append(graph.add_input(name, TensorType(dtype, tuple(shape))))
    made = build(Builder(graph), *values)
    for i, v in enumerate(made if isinstance(made, tuple) else (made,)):
        graph.add_output(v, f"out{i}")
    return graph


CASES: list[Case] = []


def fires(rule: str, after: str, tolerance: float = 0.0, **shapes: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Register the decorated builder as a case of ``rule``."""

    def register(build: Any) -> Any:
        CASES.append(Case(rule, build, shapes, after, tolerance))
        return build

    return register


# ---- folding

fires("fold_known", "", x=(2, 3))(lambda b, x: b(o("Shape"), x))
fires("fold_constant", "Add", x=(2, 3))(lambda b, x: b(o("Add"), x, b(o("Neg"), b.const(whole(2000, 2, 3)))))
fires("share_equal", "Relu Add", x=(2, 3))(lambda b, x: b(o("Add"), b(o("Relu"), x), b(o("Relu"), x)))

# ---- control flow


def _branch(name: str, op: Any) -> Graph:
    g = Graph(name)
    x, c = (g.add_input(n, TensorType(F32, (2, 3))) for n in "xc")
    g.add_output(Builder(g)(op, x, c))
    return g


def _if() -> Any:
    return o("If", then_branch=_branch("then", o("Add")), else_branch=_branch("else", o("Mul")))


fires("inline_if", "Mul", x=(2, 3), y=(2, 3))(lambda b, x, y: b.node(_if(), np.array(False), x, y).output)
fires("sink_if_constants", "If", c=(BOOL,), x=(2, 3))(lambda b, c, x: b.node(_if(), c, x, whole(2, 3)).output)

# ---- views

fires("pin_shape", "Reshape", x=("n", 4, 6))(lambda b, x: b(o("Reshape"), x, i64(0, -1, 3)))
fires("view_to_reshape", "Reshape", x=("n", 4, 1))(lambda b, x: b(o("Squeeze"), x, i64(2)))
fires("merge_reshapes", "Reshape", x=(2, 6))(lambda b, x: b(o("Reshape"), b(o("Flatten"), x), i64(3, 4)))
fires("drop_same_shape", "Relu", x=(2, 6))(lambda b, x: b(o("Expand"), b(o("Relu"), x), i64(2, 6)))
fires("drop_transpose", "Relu", x=(2, 6))(lambda b, x: b(o("Transpose", (0, 1)), b(o("Relu"), x)))
fires("merge_transposes", "Transpose", x=(2, 3, 4))(
    lambda b, x: b(o("Transpose", (1, 0, 2)), b(o("Transpose", (2, 0, 1)), x))
)
fires("drop_whole", "Relu", x=(2, 3))(lambda b, x: b(o("Slice"), b(o("Relu"), x), i64(0), i64(99), i64(1)))
fires("drop_whole", "Relu", x=(2, 3))(lambda b, x: b(o("Pad"), b(o("Relu"), x), i64(0, 0, 0, 0)))
fires("drop_empty_concat_operands", "Concat", x=(2, 3))(lambda b, x: b(o("Concat", 0), x, x, whole(0, 3)))
fires("drop_empty_concat_operands", "Relu", x=(2, 3))(lambda b, x: b(o("Concat", 0), b(o("Relu"), x)))
fires("merge_concats", "Concat", x=(2, 3), y=(1, 3))(lambda b, x, y: b(o("Concat", 0), b(o("Concat", -2), x, y), x))
fires("drop_resize", "Relu", x=(1, 2, 3, 4))(
    lambda b, x: b(o("Resize", "linear"), b(o("Relu"), x), None, None, i64(1, 2, 3, 4))
)
fires("drop_expand", "Add", x=(1, 3), y=(2, 3))(lambda b, x, y: b(o("Add"), b(o("Expand"), x, i64(2, 3)), y))


@fires("transpose_between_views", "Transpose", x=("n", 2, "s", 3))
def batched_transpose(b: Builder, x: Value) -> Any:
    joined = b(o("Reshape"), x, b(o("Concat", 0), i64(-1), b(o("Shape", 2, 3), x), i64(3)))
    moved = b(o("Transpose", (0, 2, 1)), joined)
    return b(o("Reshape"), moved, b(o("Concat", 0), b(o("Shape", 0, 1), x), i64(2, 3), b(o("Shape", 2, 3), x)))


fires("select_once", "NonZero Reshape Gather Gather", x=(2, 3), y=(3,), c=(BOOL, 3))(
    lambda b, x, y, c: (b(o("Compress", 1), x, c), b(o("Compress"), y, c))
)

# ---- arithmetic

fires("constant_right", "Add", x=(2, 3))(lambda b, x: b(o("Add"), f32(1), x))
fires("drop_neutral", "Relu", x=(2, 3))(lambda b, x: b(o("Mul"), b(o("Relu"), x), f32(1)))
fires("drop_cast", "Relu", x=(2, 3))(lambda b, x: b(o("Cast", F32), b(o("Relu"), x)))
fires("merge_casts", "Cast", x=(I8, 2, 3))(lambda b, x: b(o("Cast", F32), b(o("Cast", I64), x)))
fires("sub_to_add", "Add", x=(2, 3))(lambda b, x: b(o("Sub"), x, f32(1, 2, 3)))
fires("zero_sub_to_neg", "Neg", x=(2, 3))(lambda b, x: b(o("Sub"), f32(0), x))
fires("div_to_mul", "Mul", x=(2, 3))(lambda b, x: b(o("Div"), x, f32(2, -4, 0.5)))
fires("one_div_to_reciprocal", "Reciprocal", x=(2, 3))(lambda b, x: b(o("Div"), f32(1), x))
fires("mul_to_neg", "Neg", x=(2, 3))(lambda b, x: b(o("Mul"), x, f32(-1)))
fires("mul_by_zero", "Add", x=(I64, 2, 3))(lambda b, x: b(o("Add"), x, b(o("Mul"), x, i64(0))))
fires("pow_by_floats", "Pow", 1e-6, x=(2, 3))(lambda b, x: b(o("Pow"), x, i64(4, -3, 0)))
for _power, _after in ((2, "Mul"), (3, "Mul Mul"), (0.5, "Sqrt"), (-1, "Reciprocal"), (-0.5, "Sqrt Reciprocal")):
    fires("pow_to_products", _after, 1e-6, x=(2, 3))(lambda b, x, p=_power: b(o("Pow"), x, f32(p)))
fires("merge_add_constants", "Add", x=(2, 3))(lambda b, x: b(o("Add"), b(o("Add"), x, f32(1, 2, 3)), f32(5)))
fires("merge_mul_constants", "Mul", x=(2, 3))(lambda b, x: b(o("Mul"), b(o("Mul"), x, f32(1, 2, 3)), f32(5)))
fires("drop_open_clip", "Relu", x=(2, 3))(lambda b, x: b(o("Clip", None, np.inf), b(o("Relu"), x)))
fires("merge_clips", "Clip", x=(2, 3))(lambda b, x: b(o("Clip", -1.0, 2.0), b(o("Relu"), x)))
fires("merge_clips", "Clip", x=(2, 3))(lambda b, x: b(o("Clip", 3.0, 5.0), b(o("Clip", -1.0, 2.0), x)))
fires("merge_relu_of_clip", "Clip", x=(2, 3))(lambda b, x: b(o("Relu"), b(o("Clip", -3.0, 2.0), x)))
fires("drop_double", "Abs", x=(2, 3))(lambda b, x: b(o("Abs"), b(o("Neg"), b(o("Neg"), x))))
fires("drop_repeated", "Relu", x=(2, 3))(lambda b, x: b(o("Relu"), b(o("Relu"), x)))
fires("pin_auto_pad", "Conv", x=(1, 2, 5, 5))(
    lambda b, x: b(o("Conv", auto_pad="SAME_UPPER", strides=(2, 2)), x, whole(3, 2, 2, 3))
)
fires("pin_auto_pad", "MaxPool", x=(1, 2, 5, 5))(lambda b, x: b(o("MaxPool", (2, 2), auto_pad="VALID"), x))
fires("pin_axes", "ReduceSum", x=(2, 3))(lambda b, x: b(o("ReduceSum"), x, i64(-1)))
fires("drop_reduce", "Reshape", x=(2, 1, 3))(lambda b, x: b(o("ReduceMean", keepdims=False), x, i64(1)))
fires("prelu_to_leaky", "LeakyRelu", x=(1, 2, 3))(lambda b, x: b(o("PRelu"), x, f32(0.25, 0.25).reshape(2, 1)))
fires("lookup_before_scale", "Gather Cast Gather Mul", i=(I64, 2))(
    lambda b, i: b(o("Gather", 0), b(o("Mul"), b(o("Cast", F32), whole(5, 3).astype(I8)), whole(5, 1)), i)
)
fires("lookup_before_cast", "Gather Cast", i=(I64, 2))(
    lambda b, i: b(o("Gather", 0), b(o("Cast", F32), whole(5, 3).astype(I8)), i)
)
fires("drop_where", "Relu", x=(2, 3))(lambda b, x: b(o("Where"), np.array(True), b(o("Relu"), x), whole(2, 3)))

# ---- recognition


@fires("recognise_gelu", "Gelu", 1e-6, x=(2, 3))
def gelu_erf(b: Builder, x: Value) -> Any:
    inner = b(o("Add"), b(o("Erf"), b(o("Div"), x, f32(np.sqrt(2)))), f32(1))
    return b(o("Mul"), b(o("Mul"), x, inner), f32(0.5))


@fires("recognise_gelu", "Gelu", 1e-6, x=(2, 3))
def gelu_erf_half_first(b: Builder, x: Value) -> Any:
    inner = b(o("Add"), b(o("Erf"), b(o("Mul"), x, f32(0.70710678))), f32(1))
    return b(o("Mul"), b(o("Mul"), f32(0.5), x), inner)


fires("recognise_hard_swish", "HardSwish", 1e-6, x=(2, 3))(
    lambda b, x: b(o("Div"), b(o("Mul"), x, b(o("Clip", 0.0, 6.0), b(o("Add"), x, f32(3)))), f32(6))
)
fires("recognise_hard_sigmoid", "HardSigmoid", 1e-6, x=(2, 3))(
    lambda b, x: b(o("Mul"), b(o("Clip", 0.0, 6.0), b(o("Add"), x, f32(3))), f32(1 / 6))
)
fires("recognise_clip", "Clip", x=(2, 3))(lambda b, x: b(o("Min"), x, f32(2)))
fires("recognise_relu", "Relu", x=(2, 3))(lambda b, x: b(o("Clip", 0.0, None), x))
fires("recognise_leaky_relu", "LeakyRelu", 1e-6, x=(2, 3))(lambda b, x: b(o("Max"), b(o("Mul"), x, f32(0.1)), x))
fires("recognise_softplus", "Softplus", 1e-6, x=(2, 3))(lambda b, x: b(o("Log"), b(o("Add"), b(o("Exp"), x), f32(1))))
fires("recognise_log_softmax", "LogSoftmax", 1e-5, x=(2, 3))(lambda b, x: b(o("Log"), b(o("Softmax"), x)))
for _rule, _op in (
    ("gelu", o("Gelu", "none")), ("gelu", o("Gelu", "tanh")), ("swish", o("Swish", 1.702)), ("mish", o("Mish")),
    ("hard_swish", o("HardSwish")), ("hard_sigmoid", o("HardSigmoid", 0.25, 0.5)), ("softsign", o("Softsign")),
    ("safe_softplus", o("Softplus")), ("prelu", o("PRelu")), ("softmax", o("Softmax", 0)), ("l2", o("ReduceL2")),
):  # fmt: skip
    fires(f"recognise_{_rule}", _op.name, 1e-6, x=(2, 3))(
        lambda b, x, op=_op: decompose(op, b, x, *([f32(0.1, 0.2, 0.3)] if op.name == "PRelu" else []))
    )


def _root_mean_square(b: Builder, x: Value) -> Any:
    return b(o("Sqrt"), b(o("Add"), b(o("ReduceMean"), b(o("Mul"), x, x), i64(-1)), f32(1e-5)))


fires("recognise_rms_norm_div", "RMSNormalization", 1e-5, x=("n", 8))(
    lambda b, x: b(o("Div"), x, _root_mean_square(b, x))
)
fires("recognise_rms_norm_mul", "RMSNormalization", 1e-5, x=("n", 8))(
    lambda b, x: b(o("Mul"), b(o("Reciprocal"), _root_mean_square(b, x)), x)
)


@fires("recognise_layer_norm", "LayerNormalization", 1e-5, x=("n", 8))
def layer_norm(b: Builder, x: Value) -> Any:
    return b(o("RMSNormalization"), b(o("Sub"), x, b(o("ReduceMean"), x, i64(-1))), np.ones(8, F32))


fires("norm_scale", "RMSNormalization", 1e-5, x=(2, 8))(
    lambda b, x: b(o("Mul"), b(o("RMSNormalization"), x, np.ones(8, F32)), whole(1, 8))
)
fires("norm_bias", "LayerNormalization", 1e-5, x=(2, 8))(
    lambda b, x: b(o("Add"), b(o("LayerNormalization"), x, np.ones(8, F32)), whole(8))
)


def _grouped(b: Builder, x: Value) -> Any:
    y = b(o("InstanceNormalization"), b(o("Reshape"), x, i64(0, 2, -1)), f32(1, 2), f32(0, 1))
    return b(o("Reshape"), y, i64(2, 4, 3, 3))


fires("recognise_group_norm", "GroupNormalization", 1e-5, x=(2, 4, 3, 3))(_grouped)
fires("channel_norm_scale", "GroupNormalization", 1e-5, x=(2, 4, 3))(
    lambda b, x: b(o("Mul"), b(o("GroupNormalization", 2), x, whole(4), whole(4)), whole(4, 1))
)
fires("channel_norm_bias", "InstanceNormalization", 1e-5, x=(2, 4, 3))(
    lambda b, x: b(o("Add"), b(o("InstanceNormalization"), x, whole(4), whole(4)), whole(1, 4, 1))
)
fires("recognise_global_pool", "ReduceMean", 1e-5, x=("n", 2, 3, 3))(lambda b, x: b(o("AveragePool", (3, 3)), x))
fires("recognise_global_pool", "ReduceMax", x=("n", 2, 3, 3))(lambda b, x: b(o("MaxPool", (3, 3)), x))
fires("recognise_l2", "ReduceL2", x=(2, 3))(lambda b, x: b(o("Sqrt"), b(o("ReduceSum"), b(o("Mul"), x, x), i64(1))))


@fires("drop_stats", "LayerNormalization", x=(2, 8))
def stats(b: Builder, x: Value) -> Any:
    return b(o("LayerNormalization", stats=True), x, np.ones(8, F32))[0]
