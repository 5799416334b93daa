"""Products of a warp whose fragments are written down once more, and functions that a kernel calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bolt_numba_simulator.ptx import GlobalMemory, Module
from tests.ptx.kit import HEAD, REGISTERS, kernel, put, run

F16, F32, I32, U32 = np.float16, np.float32, np.int32, np.uint32
LANE = np.arange(32)
G, T = LANE // 4, LANE % 4


def rows_of(words: np.ndarray[Any, Any], e: int) -> np.ndarray[Any, Any]:
    """(16, k) -> (registers, 32, e): register 2 c + h of lane 4 g + t has row g + 8 h, columns from 4 e c + e t."""
    count = words.shape[1] // (2 * e)
    made = [[words[G + 8 * h, 4 * e * c + e * T + i] for i in range(e)] for c in range(count // 2) for h in range(2)]
    return np.array(made).transpose(0, 2, 1)


def columns_of(words: np.ndarray[Any, Any], e: int) -> np.ndarray[Any, Any]:
    made = [[words[4 * e * c + e * T + i, G] for i in range(e)] for c in range(words.shape[0] // (4 * e))]
    return np.array(made).transpose(0, 2, 1)


def packed(elements: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    if kind == "b1":
        return np.ascontiguousarray(np.packbits(elements.astype(np.uint8), axis=2, bitorder="little")).view(U32)[..., 0]
    return np.ascontiguousarray(elements.astype({"f16": F16, "s8": np.int8, "u8": np.uint8}[kind])).view(U32)[..., 0]


CASES = [
    ("m16n8k16.row.col.f32.f16.f16.f32", "f16", 16, "f32"),
    ("m16n8k8.row.col.f32.f16.f16.f32", "f16", 8, "f32"),
    ("m16n8k16.row.col.f16.f16.f16.f16", "f16", 16, "f16"),
    ("m16n8k32.row.col.s32.s8.s8.s32", "s8", 32, "s32"),
    ("m16n8k16.row.col.s32.u8.s8.s32", "u8", 16, "s32"),
    ("m16n8k256.row.col.s32.b1.b1.s32.and.popc", "b1", 256, "s32"),
    ("m16n8k128.row.col.s32.b1.b1.s32.xor.popc", "b1", 128, "s32"),
]


@pytest.mark.parametrize(("name", "kind", "k", "sums"), CASES, ids=[case[0] for case in CASES])
def test_products_of_a_warp(name: str, kind: str, k: int, sums: str) -> None:
    rng = np.random.default_rng(0)
    low = {"f16": -4, "s8": -128, "u8": 0, "b1": 0}[kind]
    high = {"f16": 4, "s8": 127, "u8": 255, "b1": 1}[kind]
    a, b = (
        rng.integers(low, high, (16, k), endpoint=True),
        rng.integers(max(low, -8), min(high, 8), (k, 8), endpoint=True),
    )
    c = rng.integers(-5, 5, (16, 8))
    e = {"f16": 2, "s8": 4, "u8": 4, "b1": 32}[kind]
    right = "s8" if kind == "u8" else kind
    words = [*packed(rows_of(a, e), kind), *packed(columns_of(b, e), right)]
    results = np.array([[c[G + 8 * h, 2 * T + i] for i in range(2)] for h in range(2)])
    if sums == "f16":
        words += list(np.ascontiguousarray(results.transpose(0, 2, 1).astype(F16)).view(U32)[..., 0])
    else:
        words += list(results.reshape(4, 32).astype(F32 if sums == "f32" else I32).view(U32))
    loads = "".join(f"ld.global.u32 %r{10 + i}, [%a21+{128 * i}];" for i in range(len(words)))
    na, nb = k // (2 * e), k // (4 * e)
    register = [f"%r{10 + i}" for i in range(len(words))]
    parts = register[:na], register[na : na + nb], register[na + nb :]
    moves = ""
    if sums == "f32":
        moves = "".join(f"mov.b32 %f{i}, {r};" for i, r in enumerate(parts[2]))
        parts = (*parts[:2], [f"%f{i}" for i in range(4)])
    a_text, b_text, c_text = ("{" + ", ".join(part) + "}" for part in parts)
    stores = "".join(f"st.global.b32 [%a22+{128 * i}], {r};" for i, r in enumerate(parts[2]))
    body = f"add.s64 %a21, %a0, %a20; add.s64 %a22, %a1, %a20; {loads} {moves}"
    body += f"mma.sync.aligned.{name} {c_text}, {a_text}, {b_text}, {c_text}; {stores}"
    got = run(body, np.array(words), np.zeros((len(parts[2]), 32), U32), 32)
    wanted = (a[:, :, None] != b[None]).sum(1) + c if "xor" in name else a @ b + c
    for h in range(2):
        for i in range(2):
            if sums == "f16":
                mine = got.view(F16).reshape(2, 32, 2)[h, :, i]
            else:
                mine = got.view(F32 if sums == "f32" else I32)[2 * h + i]
            np.testing.assert_array_equal(mine, wanted[G + 8 * h, 2 * T + i])


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_matrices_from_and_to_shared_memory(count: int, trans: str) -> None:
    x = np.arange(count * 64, dtype=np.uint16)
    registers = "{" + ", ".join(f"%r{20 + i}" for i in range(count)) + "}"
    body = f"""
    mov.u32 %r1, s; and.b32 %r2, %r0, {8 * count - 1}; shl.b32 %r2, %r2, 4;
    add.u32 %r3, %r1, %r2; add.u32 %r4, %r3, 1024;
    cvt.u64.u32 %a30, %r2; add.s64 %a31, %a0, %a30; add.s64 %a32, %a1, %a30;
    ld.global.v4.u32 {{%r5, %r6, %r7, %r8}}, [%a31]; st.shared.v4.u32 [%r3], {{%r5, %r6, %r7, %r8}}; bar.warp.sync -1;
    ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {registers}, [%r3];
    stmatrix.sync.aligned.m8n8.x{count}.shared.b16 [%r4], {registers}; bar.warp.sync -1;
    ld.shared.v4.u32 {{%r5, %r6, %r7, %r8}}, [%r4]; st.global.v4.u32 [%a32], {{%r5, %r6, %r7, %r8}};
    """
    got = run(body, x, np.zeros_like(x), 32, before=".shared .align 16 .b8 s[2048];\n")
    wanted = x.reshape(count, 8, 8)
    np.testing.assert_array_equal(got.reshape(count, 8, 8), wanted.transpose(0, 2, 1) if trans else wanted)


def test_functions_that_are_called() -> None:
    function = """
.func (.param .b32 out) twice(.param .b32 x, .param .b64 p) {
.reg .pred %p<4>; .reg .b32 %r<4>; .reg .b64 %a<4>;
ld.param.b32 %r1, [x]; ld.param.b64 %a1, [p]; setp.gt.u32 %p1, %r1, 10; @%p1 bra BIG;
add.u32 %r2, %r1, %r1; st.param.b32 [out], %r2; ret;
BIG: st.global.u32 [%a1], %r1; st.param.b32 [out], %r1; ret;
}
"""
    call = """
    { .param .b32 p0; st.param.b32 [p0], %r5; .param .b64 p1; st.param.b64 [p1], %a22; .param .b32 back;
    call.uni (back), twice, (p0, p1); ld.param.b32 %r5, [back]; }
    """
    body = f"add.s64 %a22, %a1, %a20; mov.u32 %r5, %r0; {call} {call} st.global.u32 [%a22], %r5;"
    got = run(body, np.zeros(1, U32), np.zeros(32, U32), 32, before=function)
    expected = np.arange(32)
    for _ in range(2):
        expected = np.where(expected > 10, expected, 2 * expected)
    assert got.tolist() == expected.tolist()


def test_blocks_that_are_no_whole_warps_and_grids_of_three_directions() -> None:
    body = """
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z; mov.u32 %r4, %nctaid.x; mov.u32 %r5, %nctaid.y;
    mad.lo.u32 %r2, %r3, %r5, %r2; mad.lo.u32 %r1, %r2, %r4, %r1; mov.u32 %r6, %tid.y; mov.u32 %r7, %ntid.x;
    mad.lo.u32 %r8, %r6, %r7, %r0; mad.lo.u32 %r8, %r1, 33, %r8; mul.wide.u32 %a30, %r8, 4; add.s64 %a31, %a0, %a30;
    bar.sync 0; st.global.u32 [%a31], %r8; atom.global.add.u64 %a33, [%a1], 1;
    """
    memory = GlobalMemory()
    x, y = put(memory, np.zeros(24 * 33, U32)), put(memory, np.zeros(1, np.uint64))
    Module(kernel(body)).launch(memory, (4, 3, 2), (11, 3), [x, y], lanes=256)
    got, count = np.zeros(24 * 33, U32), np.zeros(1, np.uint64)
    memory.read(x, got)
    memory.read(y, count)
    assert got.tolist() == list(range(24 * 33))
    assert count[0] == 24 * 33


def test_variables_of_a_module_and_jumps_by_a_table() -> None:
    before = ".const .align 4 .b32 table[4] = {5, 6, 7, 8};\n"
    body = """
    mov.u64 %a30, table; and.b32 %r1, %r0, 3; mul.wide.u32 %a31, %r1, 4;
    add.s64 %a30, %a30, %a31; ld.const.u32 %r5, [%a30];
    BT: .branchtargets A, B, A, B;
    brx.idx %r1, BT;
    A: add.u32 %r5, %r5, 100; bra END;
    B: add.u32 %r5, %r5, 200;
    END: add.s64 %a22, %a1, %a20; st.global.u32 [%a22], %r5;
    """
    got = run(body, np.zeros(1, U32), np.zeros(8, U32), 8, before=before)
    assert got.tolist() == [105, 206, 107, 208] * 2


def test_text_of_all_kinds_is_read() -> None:
    text = f"""{HEAD}/* of two
lines */ .visible .entry a(.param .u32 n) {{ ret; }}
.visible .entry b(.param .align 8 .b8 two[16], .param .f32 f, .param .u64 y) .maxntid 32, 1, 1
{{ {REGISTERS} // a comment
ld.param.u64 %a1, [two+8]; ld.param.f32 %f1, [f]; ld.param.u64 %a2, [y];
{{ .reg .f32 %f1; .reg .b32 t; mov.u32 t, 3; cvt.rn.f32.u32 %f1, t; bra IN; IN: st.global.f32 [%a2+8], %f1; }}
{{ .reg .b32 t; mov.u32 t, 0x40A00000; bra IN; IN: st.global.b32 [%a2+12], t; }}
st.global.u64 [%a2], %a1; add.f32 %f2, %f1, 0f3F800000; st.global.f32 [%a2+16], %f2; ret; }}
"""
    memory = GlobalMemory()
    y = put(memory, np.zeros(5, F32))
    Module(text, "b").launch(memory, (1,), 1, [np.array([1, 2], np.uint64), 2.5, y])
    got = np.zeros(5, F32)
    memory.read(y, got)
    assert got[:2].view(np.uint64)[0] == 2
    assert got[2:].tolist() == [3.0, 5.0, 3.5]
