"""Blobs of AArch64 machine code: what their instructions refer to, and that they run wherever they are put."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from bolt_numba.errors import KernelError
from bolt_numba.kernels import machine_code
from bolt_numba.kernels.machine_code import AARCH64, X86_64, blob_of, load_blob, machine_of
from bolt_numba.kernels.targets import object_code, target_code, twin
from tests.aarch64 import remote

ADRP, ADR, LO12, LDST32, LDST128, CALL26, PREL32, LD_LO19 = 275, 274, 277, 285, 299, 283, 261, 273

needs_emulator = pytest.mark.skipif(bool(remote.LACKING), reason=f"not installed: {remote.LACKING}")


def patched(word: int, kind: int, place: int, target: int) -> int:
    made = bytearray(place) + struct.pack("<I", word)
    machine_code._patch_arm(made, kind, place, target)
    return int(struct.unpack_from("<I", made, place)[0])


@pytest.mark.parametrize(("word", "kind", "place", "target", "wanted"), [
    (0x90000008, ADRP, 0x10, 0x2345, 0x10000008 | (0x1FF0 >> 2) << 5),  # adr x8, 0x2000
    (0x90000008, ADRP, 0x3000, 0x10, 0x10000008 | (-0x3000 >> 2 & 0x7FFFF) << 5),  # adr x8, 0
    (0x10000000, ADR, 0, 7, 0x10000000 | 3 << 29 | 1 << 5),
    (0x91000108, LO12, 0, 0x2345, 0x91000108 | 0x345 << 10),
    (0xBD400100, LDST32, 0, 0x2344, 0xBD400100 | 0x344 // 4 << 10),
    (0x3DC00100, LDST128, 0, 0x2340, 0x3DC00100 | 0x340 // 16 << 10),
    (0x94000000, CALL26, 0x100, 0x40, 0x94000000 | (-0xC0 // 4 & 0x3FFFFFF)),
    (0x9C000000, LD_LO19, 0, 0x40, 0x9C000000 | 0x10 << 5),
    (0, PREL32, 0x100, 0x40, 0xFFFFFF40),
])  # fmt: skip
def test_relocations_are_those_of_the_specification(word: int, kind: int, place: int, target: int, wanted: int) -> None:
    assert patched(word, kind, place, target) == wanted


@pytest.mark.parametrize(("kind", "target"), [
    (ADR, 1 << 20), (ADRP, 1 << 21), (LDST128, 8), (CALL26, 2), (CALL26, 1 << 27), (LD_LO19, 1 << 20), (311, 0),
    (257, 0),
])  # fmt: skip
def test_what_does_not_fit_or_is_unknown_has_no_blob(kind: int, target: int) -> None:
    with pytest.raises(machine_code._UnsuitableError):
        patched(0, kind, 0, target)


def test_blobs_say_for_which_processor_they_are() -> None:
    kernel = twin("aarch64").executor.copy_rows
    made = target_code(kernel)
    assert machine_of(made) == AARCH64
    assert machine_of(target_code(twin("generic").executor.copy_rows)) == X86_64
    if machine_code.on_x86():
        with pytest.raises(OSError, match=r"^blob: processor: got 183, wanted 62"):
            load_blob(made)


def test_a_kernel_with_instructions_of_its_target_does_not_run_here() -> None:
    if not machine_code.on_x86():
        pytest.skip("it does")
    from importlib import import_module

    kernel = twin("aarch64_dot").convolution.depthwise_bytes.depthwise_kernel(3, 1)
    compiler = import_module("bolt_numba.kernels.cpu_aarch64_dot.compiler")
    with pytest.raises(KernelError, match="machine code: got instructions of aarch64-dot"):
        compiler.compile_object(kernel)
    pack: Any = twin("aarch64_dot").products.pack.pack_b  # weights are packed here for there
    x, to, rows = np.arange(48, dtype="f4").reshape(6, 8), np.zeros(48, "f4"), np.arange(6, dtype="i4")
    pack.run(b=x, to=to, blocks=1, block=0, rows=rows, k=6, n=8, row=32, column=4, alpha=1.0)
    np.testing.assert_array_equal(to, x.reshape(-1))


def test_objects_hold_nothing_of_x86() -> None:
    """Only relocations of AArch64, and no symbol but the kernel and functions of C."""
    for kernel in (twin("aarch64").executor.copy_rows, twin("aarch64").reductions.norm.normalise_rows):
        code = object_code(kernel)
        made = machine_code._Object(code)
        assert made.machine == AARCH64
        for rows in (s for s in made.sections if s.kind == 4):
            for at in range(rows.offset, rows.offset + rows.size, 24):
                kind = struct.unpack_from("<QQq", code, at)[1] & 0xFFFFFFFF
                assert kind >= 257, kind
        assert blob_of(code, kernel.symbol) is not None
        for word in (b"x86", b"sse", b"avx", b"mxcsr", b"cpuid"):
            assert word not in code.lower()


@needs_emulator
def test_constants_calls_and_loops_run_at_any_multiple_of_64_bytes() -> None:
    """`runner.c` puts a blob where its end is that of a page, so that it seldom begins with one."""
    kernel = twin("aarch64").executor.copy_rows
    x, y = np.arange(1000, dtype=np.uint8), np.zeros(1000, np.uint8)
    remote.run_kernel(kernel, x=x, y=y, rows=1, nbytes=999, x_pitch=0, y_pitch=0, itemsize=1)
    np.testing.assert_array_equal(y[:999], x[:999])
    assert y[999] == 0
