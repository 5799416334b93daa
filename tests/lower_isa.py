"""Runs tests again on the lower instruction sets of this machine: ``python -m tests.lower_isa``, options of pytest."""

from __future__ import annotations

import os
import subprocess
import sys

from bolt_numba.kernels.instructions.isa import target

LEVELS = ["generic", "avx2", "avx512"]
IS_LOWER = "BOLT_NUMBA_TEST_LOWER" in os.environ
"""Whether this process is such a run: a few dtypes stand for all, as only the compiler makes their code another."""
AGAIN = (
    "test_bf16.py", "test_binary.py::test_sessions_give_what_the_floats_give",
    "test_byte_moves.py::test_chains_read_and_write_bytes", "test_casts.py", "test_f16.py", "test_gemm_conv.py",
    "test_grouped.py", "test_half_products.py", "test_integer_ties.py",
    *(
        f"test_jit.py::test_words_{name}"
        for name in (
            "vectors_of_f64", "vectors", "scalars", "masked_store", "count_bits", "bfloat16_rounds_to_nearest_even",
            "bfloat16_pairs", "bfloat16_products", "tiles", "exist",
        )
    ),
    "test_kernels.py::test_kernel_equals_reference", "test_narrow.py", "test_norms_far.py", "test_pack.py",
    *(
        f"test_quantise.py::test_{name}"
        for name in (
            "convolutions", "transposed_convolutions", "transposed_convolutions_of_sizes_that_only_the_run_tells",
            "products",
        )
    ),
    "test_reductions.py::test_positions_among_equals_zeros_and_nan",
    *(f"test_resize.py::test_{name}" for name in ("nearest", "blends", "windows")), "test_special_values.py",
)  # fmt: skip
"""Tests of what kernels and their words compute."""


def below() -> list[str]:
    """Lower levels than that of this process."""
    return LEVELS[: LEVELS.index(target().name)] if target().name in LEVELS else []


def main(options: list[str]) -> int:
    codes = [0]
    for isa in below():
        env = {"BOLT_NUMBA_ISA": isa, "BOLT_NUMBA_TEST_LOWER": "1", "BOLT_NUMBA_TEST_EXAMPLES": "3"}
        command = [sys.executable, "-m", "pytest", "-q", *options, *(f"tests/{name}" for name in AGAIN)]
        codes.append(subprocess.run(command, env=os.environ | env, check=False).returncode)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
