"""Cases of the rules that find binary layers; used by test_rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.types import F32, Array
from tests.rule_cases import f32, fires, i64, o

IMAGE = (1, 5, 4, 6)


def weights(*shape: int, seed: int = 0, each: float = 1.0) -> Array:
    """Signs times one number."""
    return np.asarray(np.where(np.random.default_rng(seed).random(shape) > 0.5, each, -each), F32)


def conv(b: Builder, x: Value, filters: int = 3, seed: int = 0, **attributes: Any) -> Any:
    return b(o("Conv", **attributes), x, weights(filters, x.type.dims[1], 3, 3, seed=seed))


def where(b: Builder, x: Value, op: str = "Greater", bound: Any = 0, on: float = 1, off: float = -1) -> Any:
    return b(o("Where"), b(o(op), x, np.asarray(bound, F32)), np.float32(on).reshape(()), np.float32(off).reshape(()))


fires("binary_conv", "BinaryPack BinaryConv", x=IMAGE)(lambda b, x: conv(b, b(o("Sign"), x), pads=(1, 1, 1, 1)))
fires("binary_conv", "BinaryPack BinaryConv", x=IMAGE)(lambda b, x: conv(b, b(o("Sign"), b(o("Relu"), x))))
for _op in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
    fires("binary_conv", "BinaryPack BinaryConv", x=IMAGE)(lambda b, x, op=_op: conv(b, where(b, x, op, 1)))
fires("binary_conv", "BinaryPack BinaryConv", x=IMAGE)(lambda b, x: conv(b, where(b, x, on=0.5, off=0)))
fires("binary_conv", "BinaryPack BinaryConv", x=IMAGE)(
    lambda b, x: conv(b, where(b, x, bound=each_bound()), strides=(2, 1), auto_pad="SAME_UPPER")
)
fires("binary_conv", "BinaryPack BinaryConv", x=IMAGE)(
    lambda b, x: conv(b, b(o("Cast", F32), b(o("Not"), b(o("Less"), f32(1).reshape(()), x))))
)
fires("binary_conv", "BinaryPack BinaryConv", x=IMAGE)(
    lambda b, x: conv(b, b(o("Sub"), b(o("Mul"), b(o("Cast", F32), b(o("Greater"), x, f32(0))), f32(2)), f32(1)))
)
fires("binary_conv", "BinaryPack BinaryConv", x=IMAGE)(
    lambda b, x: conv(b, b(o("Add"), b(o("Cast", F32), b(o("Greater"), x, f32(0))), f32(-1)))
)
fires("binary_conv", "BinaryPack BinaryConv", x=IMAGE)(lambda b, x: conv(b, b(o("Round"), b(o("Clip", 0, 1), x))))
fires("binary_conv", "BinaryPack BinaryConv", x=IMAGE)(lambda b, x: conv(b, b(o("Sign"), b(o("Clip", -1, 1), x))))
fires("binary_conv", "MaxPool BinaryPack BinaryConv", x=(1, 5, 8, 9))(
    lambda b, x: conv(b, b(o("MaxPool", (2, 2), strides=(2, 2)), where(b, x)))
)
fires("binary_conv", "Transpose BinaryPack BinaryConv", x=(1, 6, 4, 5))(
    lambda b, x: conv(b, b(o("Transpose", (0, 3, 2, 1)), where(b, x)))
)
for _value in f32(0, 1, -1):
    fires("binary_conv", "BinaryPack BinaryConv", x=IMAGE)(
        lambda b, x, value=_value: conv(b, b(o("Pad"), where(b, x), i64(0, 0, 1, 2, 0, 0, 0, 1), value))
    )
fires("binary_conv", "BinaryPack BinaryConv", x=(1, 4, 4, 64))(
    lambda b, x: b(o("Conv", layout="NHWC", group=2), where(b, x, bound=[1] * 64), weights(6, 32, 3, 3), f32(*range(6)))
)
fires("binary_matmul", "BinaryPack BinaryMatMul", x=(3, 40))(
    lambda b, x: b(o("MatMul", alpha=0.5), where(b, x), weights(40, 7, each=0.25), f32(*range(7)))
)
fires("binary_matmul", "Flatten BinaryPack BinaryMatMul", x=(3, 4, 10))(
    lambda b, x: b(o("MatMul", trans_b=True), b(o("Flatten"), b(o("Sign"), x)), weights(7, 40))
)


def each_bound() -> Array:
    """A bound for each channel of `IMAGE`."""
    return f32(-1, 0, 1, 2, 0.5).reshape(5, 1, 1)


def normalised(b: Builder, x: Value, mean: float) -> Any:
    """A batch norm of three channels, whose scales have both signs and 0; sums are odd, as they are of 45 signs."""
    return b(o("BatchNormalization"), x, f32(2, -0.3, 0), f32(0, 0, 0.5), f32(mean, mean, 0), f32(3, 5, 7))


def product(b: Builder, x: Value, compare: str = "gt") -> Any:
    return b(o("BinaryConv"), b(o("BinaryPack", 1, compare), x, f32(0)), weights(3, 5, 3, 3))


@fires("sign_without_zero", "BinaryPack BinaryConv BatchNormalization BinaryPack BinaryConv", x=IMAGE)
def never_zero(b: Builder, x: Value) -> Any:
    y = normalised(b, product(b, x), 0.25)
    return b(o("BinaryConv"), b(o("BinaryPack", 1, "sign"), y, f32(0)), weights(2, 3, 1, 1))


for _compare in ("gt", "ge", "lt", "le"):
    for _mean in (0, 3):
        fires("binary_thresholds", "BinaryPack BinaryConv BinaryConv", x=IMAGE)(
            lambda b, x, compare=_compare, mean=_mean: b(
                o("BinaryConv"), b(o("BinaryPack", 1, compare), normalised(b, product(b, x), mean), f32(0)),
                weights(2, 3, 1, 1),
            )
        )  # fmt: skip


@fires("binary_thresholds", "BinaryPack BinaryMatMul BinaryMatMul", x=(3, 40))
def dense(b: Builder, x: Value) -> Any:
    y = b(o("BinaryMatMul"), b(o("BinaryPack"), x, f32(0)), weights(40, 33, each=0.5), f32(*range(-16, 17)))
    y = b(o("Neg"), b(o("Clip", -5.0, 9.0), b(o("Mul"), y, f32(*([3, -2, 0] * 11)))))
    return b(o("BinaryMatMul"), b(o("BinaryPack", -1, "ge"), y, f32(0.5)), weights(33, 4))


for _compare in ("lt", "not_le", "sign"):
    fires("binary_bounds", "Mul BinaryPack BinaryConv", x=(2, 3, 4, 6))(
        lambda b, x, compare=_compare: b(
            o("BinaryConv"), b(o("BinaryPack", 1, compare), normalised(b, x, 1), f32(0)), weights(2, 3, 1, 1)
        )
    )


@fires("binary_bounds", "BinaryPack BinaryPack Concat BinaryMatMul", x=(4, 40))
def several_give_zero(b: Builder, x: Value) -> Any:
    """Numbers around -1 are lost in 1000."""
    y = b(o("Sub"), b(o("Add"), x, f32(1000)), f32(999))
    return b(o("BinaryMatMul"), b(o("BinaryPack", -1, "sign"), y, f32(0)), weights(40, 4))


@fires("binary_bounds", "BinaryPack BinaryMatMul", x=(4, 40))
def one_pack(b: Builder, x: Value) -> Any:
    y = b(o("Clip", -5.0, 9.0), b(o("Add"), b(o("Mul"), x, f32(2)), f32(*range(-20, 20))))
    return b(o("BinaryMatMul"), b(o("BinaryPack", -1, "sign"), y, f32(0)), weights(40, 4))
