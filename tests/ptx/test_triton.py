"""Products that another compiler made: its layouts of fragments and descriptors are proven on GPUs.

The texts are what Triton 3.9 makes of a plain product C = A B of tiles 32 x 32 (sm_80) or 64 x 64 (sm_90), without
comments and debugging lines.  ``_t``: B is stored as its transpose.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bolt_numba_simulator.ptx import GlobalMemory, Module
from bolt_numba_simulator.ptx.instructions.arithmetic import from_bf16, to_bf16
from tests.ptx.kit import put

TEXTS = sorted((Path(__file__).parent / "triton").glob("*.ptx"))
SHARED = 49152


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.stem)
def test_products_of_triton(text: Path) -> None:
    kind, arch, order = text.stem.split("_")
    m = n = k = 128
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
    if kind == "i8":
        a, b = (np.round(40 * x).clip(-128, 127).astype(np.int8) for x in (a, b))
    elif kind == "fp16":
        a, b = a.astype(np.float16), b.astype(np.float16)
    elif kind == "bf16":
        a, b = to_bf16(a.ravel()).reshape(m, k), to_bf16(b.ravel()).reshape(k, n)
    stored = np.ascontiguousarray(b.T) if order == "t" else b
    c = np.zeros((m, n), np.int32 if kind == "i8" else np.float32)
    memory = GlobalMemory()
    addresses = [put(memory, x) for x in (a, stored, c)]
    module = Module(text.read_text())
    given = [*addresses, m, n, k, *[put(memory, np.zeros(256, np.uint8))] * 2]
    tile = 32 if arch == "sm80" else 64
    module.launch(memory, (m // tile, n // tile), 128, given[: len(module.params)], SHARED)
    memory.read(addresses[2], c)
    if kind == "bf16":
        a, b = from_bf16(a.ravel()).reshape(m, k), from_bf16(b.ravel()).reshape(k, n)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(c - wanted).max() <= {"i8": 0, "fp32": 0.05}.get(kind, 1e-4)
