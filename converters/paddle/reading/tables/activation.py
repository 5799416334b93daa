"""Readers of activations, and of softmax."""

from __future__ import annotations

from typing import Any

from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.ir.graph import Value
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.reduce import LogSoftmax, ReduceMax, Softmax
from bolt_numba.ops.arrays.shape import Split

_PLAIN = {"relu": p.Relu, "sigmoid": p.Sigmoid, "softsign": p.Softsign, "silu": p.Swish}


for _name, _operator in _PLAIN.items():
    PADDLE.reader(_name)(AsIs(_operator()))

PADDLE.reader("brelu", "hardtanh")(AsIs(p.Clip, t_min=0.0, t_max=24.0))
PADDLE.reader("leaky_relu", slots={"alpha": "negative_slope"})(AsIs(p.LeakyRelu, negative_slope=0.02))
PADDLE.reader("elu")(AsIs(p.Elu))
PADDLE.reader("celu")(AsIs(p.Celu))
PADDLE.reader("selu")(AsIs(p.Selu, alpha=1.6732632423543772, scale=1.0507009873554805))
# The threshold chooses a formula without overflow and does not change the function.
PADDLE.reader("mish", slots={"lambda": "threshold"})(AsIs(p.Mish(), ignored={"threshold": 20.0}))
PADDLE.reader("swish")(AsIs(p.Swish, beta=1.0))
PADDLE.reader("hard_sigmoid", "hardsigmoid")(AsIs(p.HardSigmoid, slope=0.2, offset=0.5))
# X * clip(x + 3, 0, 6) / 6: Paddle 2 reads the numbers, but its kernels do not.
_HARD_SWISH = AsIs(p.HardSwish(), ignored={"threshold": 6.0, "scale": 6.0, "offset": 3.0})
PADDLE.reader("hard_swish", "hardswish")(_HARD_SWISH)


@PADDLE.reader("relu6", "relu_clipped", slots={"Relu_clipped_coef": "threshold"})
def relu6(b: PaddleBuilder, x: Value, *, threshold: float = 6.0) -> Value:
    return b(p.Clip(0.0, threshold), x)


@PADDLE.reader("rrelu", results=("Out", "Noise"))
def rrelu(b: PaddleBuilder, x: Value, *, lower: float = 0.125, upper: float = 1 / 3, is_test: bool = False) -> Any:
    b.unsupported_if(not is_test, "random slopes of training")
    return b(p.LeakyRelu((lower + upper) / 2), x), None


@PADDLE.reader("gelu")
def gelu(b: PaddleBuilder, x: Value, *, approximate: bool = False) -> Value:
    return b(p.Gelu("tanh" if approximate else "none"), x)


PADDLE.reader("logsigmoid")(lambda b, x: b(p.Neg(), b(p.Softplus(), b(p.Neg(), x))))


@PADDLE.reader("softplus")
def softplus(b: PaddleBuilder, x: Value, *, beta: float = 1.0, threshold: float = 20.0) -> Value:
    """log(1 + exp(beta * x)) / beta; x itself where beta * x is above the threshold."""
    scaled = x if beta == 1 else b(p.Mul(), x, beta)
    made = b(p.Softplus(), scaled)
    made = made if beta == 1 else b(p.Div(), made, beta)
    return made if threshold >= 20 else b.chosen(b(p.Greater(), scaled, threshold), x, made, x.type.dtype)


@PADDLE.reader("soft_relu")
def soft_relu(b: PaddleBuilder, x: Value, *, threshold: float = 40.0) -> Value:
    return b(p.Softplus(), b(p.Clip(-threshold, threshold), x))


@PADDLE.reader("hard_shrink", "hardshrink")
def hard_shrink(b: PaddleBuilder, x: Value, *, threshold: float = 0.5) -> Value:
    """X, or 0 where it is within the threshold.  NaN stays."""
    return b.chosen(b(p.Less(), b(p.Abs(), x), threshold), 0.0, x, x.type.dtype)


@PADDLE.reader("softshrink", slots={"lambda": "threshold"})
def softshrink(b: PaddleBuilder, x: Value, *, threshold: float = 0.5) -> Value:
    """X nearer to 0 by the threshold.  NaN stays."""
    return b(p.Sub(), x, b(p.Clip(-threshold, threshold), x))


PADDLE.reader("tanh_shrink")(lambda b, x: b(p.Sub(), x, b(p.Tanh(), x)))


@PADDLE.reader("stanh")
def stanh(b: PaddleBuilder, x: Value, *, scale_a: float = 0.67, scale_b: float = 1.7159) -> Value:
    return b(p.Mul(), b(p.Tanh(), b(p.Mul(), x, scale_a)), scale_b)


@PADDLE.reader("thresholded_relu")
def thresholded_relu(b: PaddleBuilder, x: Value, *, threshold: float = 1.0, value: float = 0.0) -> Value:
    """X above the threshold, elsewhere a value.  NaN stays."""
    return b.chosen(b(p.LessOrEqual(), x, threshold), value, x, x.type.dtype)


@PADDLE.reader("logit")
def logit(b: PaddleBuilder, x: Value, *, eps: float = 1e-6) -> Value:
    kept = b(p.Clip(eps, 1 - eps), x) if eps else x
    return b(p.Log(), b(p.Div(), kept, b(p.Add(), b(p.Neg(), kept), 1.0)))


@PADDLE.reader("swiglu")
def swiglu(b: PaddleBuilder, x: Value, y: Value | None = None) -> Value:
    if y is None:
        x, y = b.node(Split(-1, 2), x).outputs
    return b(p.Mul(), b(p.Swish(), x), y)


@PADDLE.reader("prelu")
def prelu(b: PaddleBuilder, x: Value, alpha: Value, *, mode: str = "all", data_format: str = "NCHW") -> Value:
    """mode: one slope, one a channel, or one an element of an image."""
    rank = b.rank_of(x)
    if mode == "all":
        return b(p.PRelu(), x, b.shaped(alpha, [1] * rank))
    if mode == "channel":
        return b(p.PRelu(), x, b.along(b.shaped(alpha, [-1]), rank, rank - 1 if b.is_last(data_format) else 1))
    if mode == "element":
        return b(p.PRelu(), x, b.shaped(alpha, [1], b.lengths(x, range(1, rank))))
    raise b.invalid("mode", repr(mode), "all, channel or element")


@PADDLE.reader("maxout")
def maxout(b: PaddleBuilder, x: Value, *, groups: int, axis: int = 1) -> Value:
    """The greatest of each ``groups`` neighbouring channels."""
    at = b.axis_of(x, axis)
    channels = b.static_dim(x, at)
    b.invalid_if(groups < 1 or channels % groups, "groups", groups, f"a divisor of {channels}")
    rank = b.rank_of(x)
    shape = [0] * at + [channels // groups, groups]
    tail = [b.lengths(x, range(at + 1, rank))] if at + 1 < rank else []
    return b(ReduceMax(False), b.shaped(x, shape, *tail), b.const([at + 1]))


@PADDLE.reader("softmax")
def softmax(b: PaddleBuilder, x: Value, *, axis: int = -1) -> Value:
    return b(Softmax(axis), x) if b.rank_of(x) else b(p.Div(), x, x)


@PADDLE.reader("log_softmax")
def log_softmax(b: PaddleBuilder, x: Value, *, axis: int = -1) -> Value:
    return b(LogSoftmax(axis), x) if b.rank_of(x) else b(p.Sub(), x, x)


@PADDLE.reader("softmax_with_cross_entropy", "cross_entropy_with_softmax", results=("Softmax", "Loss"))
def softmax_with_cross_entropy(b: PaddleBuilder, logits: Value, label: Value, *, axis: int = -1) -> tuple[Value, None]:
    """The softmax alone: losses are of training."""
    return b(Softmax(axis), logits), None


@PADDLE.reader("label_smooth", slots={"X": "label", "PriorDist": "prior"})
def label_smooth(b: PaddleBuilder, label: Value, prior: Value | None = None, *, epsilon: float = 0.0) -> Value:
    """(1 - epsilon) * label + epsilon * prior, which is 1 / classes without one."""
    kept = b(p.Mul(), label, 1 - epsilon)
    if prior is not None:
        return b(p.Add(), kept, b(p.Mul(), prior, epsilon))
    return b(p.Add(), kept, epsilon / b.static_dim(label, -1))


PADDLE.reader(pir=("fused_dropout_add",))(lambda b, x, y: (b(p.Add(), x, y), None))


_DROPOUT = {"dropout_prob": "prob", "p": "prob", "dropout_implementation": "mode"}


@PADDLE.reader("dropout", results=("Out", "Mask"), slots=_DROPOUT)
def dropout(
    b: PaddleBuilder,
    x: Value,
    seed: Value | None = None,
    prob: Value | None = None,
    *,
    is_test: bool = False,
    mode: str = "downgrade_in_infer",
) -> tuple[Value, None]:
    """The identity, or, where training did not scale, x * (1 - prob)."""
    b.unsupported_if(not is_test, "dropout of training")
    if mode == "upscale_in_train":
        return x, None
    share = 0.5 if prob is None else b.number(prob, x.type.dtype)
    if isinstance(share, Value):
        return b(p.Mul(), x, b(p.Add(), b(p.Neg(), share), 1.0)), None
    return b(p.Mul(), x, 1 - share), None
