"""Registers, local and shared memory and classes of instructions of every CUDA kernel, against the stored table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bolt_numba.errors import KernelError
from bolt_numba.kernels.cuda.code import cubin
from bolt_numba.kernels.cuda.compiler import linked
from bolt_numba.kernels.cuda.declare import PTR, SM_80, SM_90A, cuda_kernel
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import cuda
from tests.cuda.cubin import resources
from tests.cuda.resources import (
    ARCHITECTURES,
    TABLE,
    disassembler,
    faults,
    instructions,
    modules,
    samples,
    table_of,
    unnamed,
)

STORED: dict[str, Any] = json.loads(TABLE.read_text())


@pytest.mark.parametrize("module", sorted(modules()))
def test_kernels_take_what_the_table_says(module: str) -> None:
    """For their own architecture; `make cuda-resources` compiles for all, which takes three times as long."""
    assert faults(module, table_of(module, every=False), STORED.get(module, {})) == []


def test_the_table_has_every_architecture() -> None:
    for module in modules():
        for name, kernel in samples(module).items():
            rows = STORED[module][name]
            assert list(rows) == [arch for arch in ARCHITECTURES if arch >= kernel.arch], f"{module}: {name}"
            assert all(row["stack"] == 0 for row in rows.values()), f"{module}: {name}"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("stack", 8, "has 8 bytes of local memory: registers are spilled"),
        ("registers", 49, "got 49 registers, wanted at most 8 beside the table's 40"),
        ("shared", 64, "shared: got 64, wanted 0 as in the table"),
        ("has", ["HMMA"], r"has: got ['HMMA'], wanted [] as in the table"),
        ("has", ["F64"], "computes in f64"),
    ],
)
def test_what_differs_from_the_table_is_told(key: str, value: Any, said: str) -> None:
    row = {"registers": 40, "stack": 0, "shared": 0, "has": []}
    stored = {"f": {SM_80: row}}
    assert faults("m", stored, stored) == []
    assert f"m: f for sm_80: {said}" in faults("m", {"f": {SM_80: row | {key: value}}}, stored)
    assert len(faults("m", {"f": stored["f"], "g": stored["f"]}, stored)) == 1


def test_kernels_of_every_module_are_in_the_table() -> None:
    assert unnamed() == [], "a function in tests/cuda/samples.py gives kernels of each module"


def test_the_linker_has_nothing_to_say_of_warp_groups() -> None:
    """C7504, C7508 and C7510 say that setmaxnreg is left out, or that products wait for each other."""
    for module in modules():
        for name, kernel in samples(module).items():
            if kernel.arch == SM_90A:
                said = linked(kernel, SM_90A)[1]
                assert "C75" not in said, f"{module}: {name}: {said}"


SIZE = 96


def test_the_reader_finds_spills_and_shared_memory() -> None:
    load, store = lang.load_f32, lang.store_f32

    @cuda_kernel(threads=1024, blocks=lambda a: 1, x=PTR)
    def spilling(x):  # type: ignore[no-untyped-def]
        shared = cuda.shared.array(SIZE, "f4")
        tile = cuda.local.array(SIZE, "f4")
        shared[cuda.threadIdx.x % SIZE] = load(x)
        for i in range(SIZE):
            tile[i] = load(x + 4 * i)
        cuda.syncthreads()
        for i in range(SIZE):
            store(x + 4 * i, tile[(i * 7) % SIZE] + tile[int(load(x)) % SIZE] + shared[i])

    found = resources(cubin(spilling, SM_80))
    assert "spilling" in found.entry
    assert found.stack >= 4 * SIZE
    assert found.shared == 4 * SIZE
    assert 16 <= found.registers <= 64


def test_the_disassembler_finds_classes() -> None:
    if disassembler() is None:
        pytest.skip("nvdisasm is not installed")
    dot, load, store = lang.dp4a, lang.load_u32, lang.store_u32

    @cuda_kernel(threads=32, blocks=lambda a: 1, x=PTR)
    def dots(x):  # type: ignore[no-untyped-def]
        store(x, dot(load(x), load(x + 4), load(x + 8)))

    assert "IDP" in (instructions(cubin(dots, SM_80)) or ())


def test_what_is_no_cubin_is_refused() -> None:
    for data in (b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(200)):
        with pytest.raises(KernelError, match="cubin: got bytes of another kind"):
            resources(data)
