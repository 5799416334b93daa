"""Kernels for other instruction sets, compiled and, where this processor has them, run in one process."""

from __future__ import annotations

import re
import struct
import sys
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba import devices
from bolt_numba.devices.cpu import Cpu
from bolt_numba.errors import DeviceError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.kernels import registry
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.targets import TARGETS, assembly, device_of, object_code, twin
from bolt_numba.ops.arrays.reduce import Softmax
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import HardSwish, Relu
from bolt_numba.types import F32, TensorType
from tests.loops import text_of
from tests.lower_isa import LEVELS
from tests.rule_cases import graph_of, whole

LOWER = [name for name in LEVELS if LEVELS.index(name) < (LEVELS.index(target().name) if target().is_x86 else 0)]
REGISTERS = {"avx512": "zmm", "avx2": "ymm", "generic": "xmm"}
ELF_MACHINE = {name: 183 for name in TARGETS if name.startswith("aarch64")}
X86_64 = 62


def kernel_of(name: str) -> Any:
    """The kernel of a Relu for a target."""
    twin(name)
    ins = [TensorType(F32, (4, 100))]
    entry = registry.select(Relu(), ins, device=device_of(name))
    assert entry is not None
    (step,) = entry.make(Relu(), ins, ins, registry.QUERY)
    return step.kernel


@pytest.mark.parametrize("name", TARGETS)
def test_kernels_compile_for_targets_that_are_not_this_processor(name: str) -> None:
    kernel = kernel_of(name)
    code = object_code(kernel)
    assert code[:4] == b"\x7fELF"
    (machine,) = struct.unpack_from("<H", code, 18)
    assert machine == ELF_MACHINE.get(name, X86_64)
    assert kernel.symbol.encode() in code


@pytest.mark.skipif(not target().is_x86, reason="the text is of x86")
@pytest.mark.parametrize("name", REGISTERS)
def test_code_has_the_registers_of_its_target(name: str) -> None:
    kernel = kernel_of(name)
    text = assembly(kernel)
    above = list(REGISTERS.values())[: list(REGISTERS).index(name)]
    assert REGISTERS[name] in text
    assert not any(register in text for register in above)


@pytest.mark.parametrize(("name", "instruction", "scalar"), [
    ("avxvnni", r"\{vex\}\s+vpdpbusd\s.*%ymm", r"vpmaddwd"),
    ("avx2", r"vpmaddwd\s.*%ymm", r"vpmaddubsw|vpdpbusd"),
    ("generic", r"pmaddwd\s.*%xmm", r"pmaddubsw"),
    ("aarch64_dot", r"sdot\s+v\d+\.4s, v\d+\.16b", r"\smul\s+v"),
    ("aarch64_i8mm", r"usdot\s+v\d+\.4s, v\d+\.16b", r"\s(sdot|mul)\s+v"),
])  # fmt: skip
def test_products_of_bytes_lower_to_what_a_target_has(name: str, instruction: str, scalar: str) -> None:
    found = twin(name)
    tiles = found.products.sweep_bytes
    for kernel, least in (
        (tiles.sweep_bytes, sum(tiles.VARIANTS) * 2),
        (found.convolution.depthwise_bytes.depthwise_kernel(3, 1), 12),
    ):
        text = text_of(kernel)
        assert len(re.findall(instruction, text)) >= least
        assert not re.search(scalar, text)


def test_a_twin_leaves_the_kernels_of_the_process_alone() -> None:
    registry.load("cpu")
    found = twin("generic")
    assert found.language.lang.LANES == 4
    assert found.products.sweep_extents.MR == 6
    for (op, device), entries in registry.KERNELS.items():
        packages = {".".join(entry.make.__module__.split(".")[:3]) for entry in entries}
        if device in ("cpu", "cpu_generic"):
            common = {"bolt_numba.kernels.common"} if device == "cpu" else set()
            assert packages <= {f"bolt_numba.kernels.{device}", *common}, op
    assert twin("generic") is found
    assert found.products.sweep.sweep is not sys.modules["bolt_numba.kernels.cpu.products.sweep"].sweep


def network(b: Builder, x: Value) -> Value:
    return b(Softmax(-1), b(MatMul(), b(HardSwish(), b(MatMul(), x, whole(20, 37, seed=1))), whole(37, 5, seed=2)))


@pytest.mark.parametrize("name", LOWER)
def test_sessions_run_on_lower_instruction_sets(name: str) -> None:
    device = device_of(name)
    if device not in devices.names():
        devices.register(device, lambda: Cpu(name))
    graph, x = graph_of(network, {"x": ("n", 20)}), whole(9, 20)
    lower, own = (bn.compile(graph, device=d, threads=2) for d in (device, "cpu"))
    wanted = interpret(graph, {"x": x})["out0"]
    for session in (lower, own, lower):
        np.testing.assert_allclose(session(x)[0], wanted, rtol=1e-5, atol=1e-7)
    assert not {id(a) for a in lower._packs._made.values()} & {id(a) for a in own._packs._made.values()}
    assert devices.device(device).describe().startswith(name)
    both = bn.compile(graph, device=[device, "cpu"], threads=1)
    both(x)
    assert all(key[1][0] == device for key in both._packs._made)


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(DeviceError, match=r"^target: got 'sparc', wanted one of avx512, avx2"):
        twin("sparc")
