"""Products with floats as GGUF files store them: packed as they are; those of 16 bits are widened in registers."""

from __future__ import annotations

import numpy as np

from bolt_numba.base.huge_pages import line_aligned
from bolt_numba.base.selects import either
from bolt_numba.base.types import Array
from bolt_numba.kernels.cpu.forms.products import accepts_form
from bolt_numba.kernels.cpu.halves.f16 import SWEEPS
from bolt_numba.kernels.cpu.products.matmul import ONE_BLOCK, dense_step, is_parallel, packed_bias
from bolt_numba.kernels.cpu.products.pack import PANEL, panel_columns
from bolt_numba.kernels.registry import Argument, Context, In, Outs, Step, Types, kernel
from bolt_numba.ops.layers.products.forms import FORMS
from bolt_numba.ops.layers.products.matmul_forms import MatMulForm


def pack_floats(raw: Array, size: int) -> Array:
    """Panels as those of `pack.pack_panels`, of the bits that rows u8 [n, size * k] hold."""
    rows = np.ascontiguousarray(raw).view(f"u{size}")
    n, k = rows.shape
    made = line_aligned(size * k * panel_columns(n)).view(rows.dtype)
    for first in range(0, n, PANEL):
        some = rows[first : first + PANEL]
        panel = made[first * k :][: k * min(PANEL, panel_columns(n - first))].reshape(k, -1)
        panel[:, : len(some)], panel[:, len(some) :] = some.T, 0
    return made


@kernel(MatMulForm, accepts=lambda op, ins: FORMS[op.form].plain is not None and accepts_form(op, ins))
def matmul_form_of_floats(op: MatMulForm, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """As `matmul`, whose panels are f32."""
    x, raw, form = ins[0], ins[1], FORMS[op.form]
    n, k = raw.dims[0], x.dims[-1]
    m = x.size // k
    bias, steps = packed_bias((*ins, None)[2], 2, n, context)
    main: dict[str, Argument] = {
        "a": In(0), "lda": k, "b": context.packed(raw.known, ("floats", op.form), lambda a: pack_floats(a, form.size)),
        "bias": bias, "ldc": n, "blocks": 1, "offsets": ONE_BLOCK,
    }  # fmt: skip
    threads = either(is_parallel(context, 2 * m * n * k, raw.nbytes), context.threads, 1)
    return [*steps, dense_step(SWEEPS[form.plain], op, main, (m, n, k), threads, context)]
