"""Bases of rows whose operands differ in dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.errors import DTypeError
from bolt_numba.base.types import BOOL, AnyDType, Array, dtype_name
from bolt_numba.ops.arrays.conversion import ROUND_MODES, cast
from bolt_numba.ops.pointwise.references import power
from bolt_numba.ops.pointwise.row import Pointwise, compute_dtype
from bolt_numba.ops.registry import want_among, want_dtype


class Mixed(Pointwise):
    """Base of rows whose operands differ in dtype."""

    def reference(self, *inputs: Array) -> Array:
        arrays = [np.asarray(a) for a in inputs]
        compute = type(self).__dict__["compute"].__func__
        with np.errstate(all="ignore"):
            return np.asarray(compute(self, *arrays))


class Power(Mixed):
    """Pow: the exponent may have another numeric dtype than the base, whose dtype the result takes."""

    def result_dtype(self, *dtypes: AnyDType) -> AnyDType:
        want_dtype(self, "operand 0", dtypes[0], *self.dtypes)
        want_dtype(self, "operand 1", dtypes[1], *self.dtypes)
        return dtypes[0]

    def reference(self, *inputs: Array) -> Array:
        x, y = (np.asarray(a) for a in inputs)
        base = x.astype(compute_dtype(x.dtype, True), copy=False)
        exponent = y.astype(compute_dtype(y.dtype, True), copy=False)
        with np.errstate(all="ignore"):
            return cast(np.asarray(power(base, exponent)), x.dtype)


class Select(Mixed):
    """Where: the first operand is bool, the others share any dtype."""

    def result_dtype(self, *dtypes: AnyDType) -> AnyDType:
        want_dtype(self, "condition", dtypes[0], BOOL)
        want_dtype(self, "operand 2", dtypes[2], dtypes[1])
        return dtypes[1]


class Convert(Mixed):
    """Cast: any number to any other, and to or from strings."""

    converts = True
    to: AnyDType
    saturate: bool
    round_mode: str

    def result_dtype(self, *dtypes: AnyDType) -> AnyDType:
        want_among(self, ROUND_MODES, round_mode=self.round_mode)
        for what, dtype in (("operand 0", dtypes[0]), ("the result", self.to)):
            if dtype.kind in "SU":
                raise DTypeError(f"Cast: dtype of {what}: got {dtype_name(dtype)}, wanted a number")
        return self.to


def convert(o: Any, x: Array) -> Array:
    return cast(x, np.dtype(o.to), o.saturate, o.round_mode)
