"""Activations of recurrent layers: helpers of one f32 number, with ONNX's alpha ``a`` and beta ``b``, by its names."""

from __future__ import annotations

from typing import Any

from bolt_numba.codegen.threads import formula_text
from bolt_numba.kernels.cuda.declare import inline_source
from bolt_numba.kernels.cuda.elementwise.scalars import scope_of
from bolt_numba.ops import pointwise as ops

_FORMULAS = {
    op.name.lower(): op().text
    for op in (
        *(ops.Relu, ops.Tanh, ops.Sigmoid, ops.LeakyRelu, ops.ThresholdedRelu, ops.HardSigmoid, ops.Elu),
        *(ops.Softsign, ops.Softplus),
    )
} | {"affine": "alpha * x + beta", "scaledtanh": "alpha * tanh(beta * x)"}


def _function(name: str) -> Any:
    text = f"def activate(x, a, b):\n    return {formula_text(_FORMULAS[name], x='x', alpha='a', beta='b')}\n"
    return inline_source(text, "activate", **scope_of(text))


FUNCTIONS = {name: _function(name) for name in _FORMULAS}
