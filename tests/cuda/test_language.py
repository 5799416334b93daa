"""Words, macros and helpers of the kernel language of CUDA compile to machine code, and do what they say."""

from __future__ import annotations

import linecache
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bolt_numba.errors import KernelError
from bolt_numba.kernels.cuda.code import cubin, ptx
from bolt_numba.kernels.cuda.compiler import word_names
from bolt_numba.kernels.cuda.declare import F32, I64, PTR, SM_80, SM_90A, CudaKernel, Macro, cuda_kernel
from bolt_numba.kernels.cuda.language import lang, warp
from bolt_numba.kernels.cuda.language.division import divider, fast_divide
from bolt_numba.kernels.cuda.language.instructions import _HOPPER, INSTRUCTIONS, Instruction
from bolt_numba.kernels.cuda.language.lang import cuda, static, static_range
from bolt_numba.kernels.cuda.language.macros import MACROS
from bolt_numba.kernels.declare import Inline, Source, inline
from bolt_numba.types import BF16
from bolt_numba_simulator.ptx import GlobalMemory, Module


def generated(lines: list[str], scope: dict[str, Any], arch: str = SM_80, threads: int = 128) -> CudaKernel:
    fields = {"x": PTR, "n": I64, "f": F32}
    text = "def words(x, n, f):\n" + "".join(f"    {line}\n" for line in lines)
    scope = {"cuda": cuda, "np": np, **scope}
    return CudaKernel(Source(text, "words", scope), "words", fields, threads=threads, blocks=lambda a: 1, arch=arch)


ARGUMENTS = {"r": "np.uint32(n)", "l": "x", "f": "f", "h": "np.uint16(n)", "d": "np.float64(f)"}
STORES = {"r": "store_u32", "f": "store_f32", "l": "store_i64", "h": "store_u16", "d": "store_f64"}


def call(name: str, instruction: Instruction) -> list[str]:
    given = ", ".join([ARGUMENTS[c] for c in instruction.arguments] + ["64"] * len(instruction.literals))
    kinds = instruction.results
    if not kinds:
        return [f"{name}({given})"]
    names = [f"y{i}" for i in range(len(kinds))]
    return [f"{', '.join(names)} = {name}({given})"] + [
        f"{STORES[kind]}(x + {8 * i}, {y})" for i, (kind, y) in enumerate(zip(kinds, names, strict=True))
    ]


@pytest.mark.parametrize("group", ["arithmetic", "memory", "matrices", "hopper"])
def test_every_instruction_becomes_machine_code(group: str) -> None:
    def group_of(name: str, each: Instruction) -> str:
        if name in _HOPPER:
            return "hopper"
        if each.is_pure:
            return "arithmetic"
        return "matrices" if "m8n8" in each.text or "mma" in name else "memory"

    chosen = {name: each for name, each in INSTRUCTIONS.items() if group_of(name, each) == group}
    lines = [line for name, each in chosen.items() for line in call(name, each)]
    scope = {name: getattr(lang, name) for name in (*chosen, *STORES.values())}
    arch = SM_90A if group == "hopper" else SM_80
    assert cubin(generated(lines, scope, arch), arch).startswith(b"\x7fELF")


def test_every_word_has_a_meaning() -> None:
    assert word_names() == set(lang.WORDS) - {"static", "static_range"}


def test_the_page_lists_words_and_helpers() -> None:
    text = (Path(__file__).parents[2] / "docs" / "cuda.md").read_text()
    helpers = [name for name, value in vars(warp).items() if isinstance(value, Inline) and name.startswith("warp")]
    assert [name for name in (*INSTRUCTIONS, *helpers) if f"`{name}" not in text] == []
    assert [name for name, made in MACROS.items() if f"{name}(" not in (made.__doc__ or "")] == []


CALLS = [
    ("lds", (2, 32), "macro(floats, n, 0)", SM_80),
    ("ldsm", (2, 64, True), "macro(words, n, 16)", SM_80),
    ("ldsm_at", (False,), "macro(words, 4, n, 16)", SM_80),
    ("outer", (2, 4), "macro(floats, more, more)", SM_80),
    ("mma_tile", (2, 2, "f16"), "macro(floats, words, words)", SM_80),
    ("mma_tile", (1, 1, "b1"), "macro(words, words, words)", SM_80),
    ("mma_row", (2, "bf16"), "macro(floats, words, 4, words)", SM_80),
    ("fill", (8, 1.5), "macro(floats)", SM_80),
    ("ldsm_turned", (2,), "macro(words, n, n, 16)", SM_80),
    ("sts_sums", (2, 64), "macro(floats, 4, n)", SM_80),
    ("dots", (2, 2, 4, True), "macro(floats, more, more)", SM_80),
    ("hide", (1, 2), "macro(floats, n, signed, signed)", SM_80),
    ("add_mask", (1, 2, "bf16", False), "macro(floats, n, n, places, f)", SM_80),
    ("cap_scores", (1, 2), "macro(floats, f, f)", SM_80),
    ("soften", (1, 2), "macro(floats, more, more, more, f)", SM_80),
    ("scale_rows", (1, 2), "macro(floats, more)", SM_80),
    ("pack_rows", (1, 4, "bf16"), "macro(floats, words)", SM_80),
    ("store_rows", (1, 2, "f16", 64), "macro(floats, n)", SM_80),
    ("store_sums", (1, 2), "macro(floats, places, n, n)", SM_80),
    ("wgmma", (16, "f16"), "macro(floats, 0, n, n, 1)", SM_90A),
    ("wgmma", (16, "s8"), "macro(words, 0, n, n, 1)", SM_90A),
    ("wgmma", (16, "b1"), "macro(words, 0, n, n, 1)", SM_90A),
]


@pytest.mark.parametrize(("name", "settings", "text", "arch"), CALLS)
def test_macros_become_machine_code_without_local_memory(name: str, settings: Any, text: str, arch: str) -> None:
    kinds = {
        "floats": np.float32, "more": np.float32, "words": np.uint32, "signed": np.int32, "places": np.int64
    }  # fmt: skip
    stores = {np.float32: "store_f32", np.uint32: "store_u32", np.int32: "store_i32", np.int64: "store_i64"}
    lines = [f"{each} = cuda.local.array(32, np.{kind.__name__})" for each, kind in kinds.items()]
    lines += [f"fill_{each}({each})" for each in kinds] + [text]
    for each, kind in kinds.items():
        lines += [f"for i in range(32):\n        {stores[kind]}(x + 8 * i, {each}[i])"]
    scope = {f"fill_{each}": Macro("fill", 32, 0) for each in kinds} | {"macro": Macro(name, *settings)}
    scope |= {word: getattr(lang, word) for word in stores.values()}
    kernel = generated(lines, scope, arch)
    assert ".local" not in ptx(kernel, arch)
    assert cubin(kernel, arch).startswith(b"\x7fELF")


def run(kernel: CudaKernel, data: np.ndarray[Any, Any], *more: Any) -> Any:
    """The memory that the kernel was given, after one block of it."""
    memory = GlobalMemory()
    address, made = memory.allocate(data.nbytes), np.empty_like(data)
    memory.write(address, data)
    Module(ptx(kernel, SM_80)).launch(memory, (1, 1, 1), kernel.threads, [address, *more], 0)
    memory.read(address, made)
    return made


VECTORS = [(n, dtype) for dtype, size in lang.SIZES.items() for n in (1, *lang.VECTORS) if n * size <= 16]


def test_vectors_of_every_dtype_are_copied() -> None:
    """From global memory by both kinds of loads to shared memory and back; 16 bytes are one instruction each."""
    lines = ["shared = cuda.shared.array(16, np.float64)", "s = shared_address(shared)"]
    for i, (n, dtype) in enumerate(VECTORS):
        vector = f"{'' if n == 1 else n}_{dtype}"
        star = "" if n == 1 else "*"
        lines += [
            f"store{vector.replace('_', '_shared_')}(s, {star}load{vector}(x + {64 * i}))",
            "cuda.syncthreads()",
            f"store{vector}(x + {64 * i + 16}, {star}load{vector.replace('_', '_shared_')}(s))",
            f"store{vector}(x + {64 * i + 32}, {star}load{vector}_nc(x + {64 * i + 48}))",
        ]
    words = ["shared_address", *(w for w in lang.WORDS if w.startswith(("load", "store")))]
    kernel = generated(lines, {w: getattr(lang, w) for w in words}, threads=32)
    text = ptx(kernel, SM_80)
    for instruction in ("ld.global.v4.f32", "ld.global.nc.v4.u32", "ld.shared.v4.u32", "st.global.v4.u32", "v2.f64"):
        assert instruction in text
    assert ".v4.u16" not in text
    assert ".v4.u8" not in text
    data = np.random.default_rng(0).integers(0, 100, (len(VECTORS), 4, 16)).astype(np.uint8)  # no NaN in any dtype
    wanted = data.copy()
    for i, (n, dtype) in enumerate(VECTORS):
        nbytes = n * lang.SIZES[dtype]
        wanted[i, 1, :nbytes] = wanted[i, 0, :nbytes]
        wanted[i, 2, :nbytes] = wanted[i, 3, :nbytes]
    np.testing.assert_array_equal(run(kernel, data, 0, 0.0), wanted)


def pairs_of(values: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    """f32 values as pairs of halves in u32, the first in the low bits."""
    made: np.ndarray[Any, Any] = values.astype(dtype).view(np.uint32)
    return made


def test_arithmetic_words_compute_what_their_names_say() -> None:
    """One lane, one line each: the value of the word, and what it should be."""
    a, b, c = np.float32(1.7), np.float32(-2.5), np.float32(np.nan)
    halves = np.float32([1.5, -2.25, 0.1, 3])
    low = halves[:2]
    x, y = 0x80FF7F01, 0x01020304  # bytes 1, 127, -1, -128 and 4, 3, 2, 1
    f16x, f16y, bf16 = *pairs_of(halves, np.float16), pairs_of(low, BF16)[0]
    f16 = halves.astype(np.float16)
    bits: list[tuple[str, int]] = [
        (f"dp4a({x}, {y}, 5)", 4 + 381 - 2 - 128 + 5), (f"dp4a_uu({x}, {y}, 5)", 4 + 381 + 510 + 128 + 5),
        (f"dp4a_us({x}, {0x01020304}, 5)", 4 + 381 + 510 + 128 + 5), (f"prmt({x}, {y}, 0x5410)", 0x03047F01),
        (f"lop3_xor_and({x}, {y}, 255)", x & (y ^ 255)), (f"mulhi_u32({x}, {y})", x * y >> 32),
        (f"shift_right_u32({x}, 4)", x >> 4), ("round_i32(np.float32(2.5))", 2), ("round_i32(np.float32(-7.6))", -8),
        ("round_i32(np.float32(3e9))", 2**31 - 1), ("saturate_s8(300)", 127), ("saturate_s8(-300)", -128),
        ("saturate_u8(-3)", 0), ("f32_bits(np.float32(1))", 0x3F800000),
        ("cvt_f16x2(np.float32(-2.25), np.float32(1.5))", int(f16x)),
        ("cvt_bf16x2(np.float32(-2.25), np.float32(1.5))", int(bf16)),
        (f"hfma2({f16x}, {f16y}, {f16x})", int(pairs_of(f16[:2] * f16[2:] + f16[:2], np.float16)[0])),
        (f"hadd2({f16x}, {f16y})", int((f16[:2] + f16[2:]).view(np.uint32)[0])),
        (f"hmul2({f16x}, {f16y})", int((f16[:2] * f16[2:]).view(np.uint32)[0])),
        (f"hmax2({f16x}, {f16y})", int(np.maximum(f16[:2], f16[2:]).view(np.uint32)[0])),
        (f"hmin2({f16x}, {f16y})", int(np.minimum(f16[:2], f16[2:]).view(np.uint32)[0])),
        ("cvt_tf32(np.float32(1.00001))", 0x3F800000), ("np.uint32(mad_wide_i32(-3, 7, 100))", 79),
    ]  # fmt: skip
    floats: list[tuple[str, Any]] = [
        ("ex2(a)", 2**a), ("lg2(a)", np.log2(a)), ("rcp(a)", 1 / a), ("rsqrt_approx(a)", a**-0.5),
        ("sqrt_approx(a)", a**0.5), ("tanh_approx(a)", np.tanh(a)), ("rcp_exact(a)", 1 / a),
        ("divide_exact(a, b)", a / b), ("sqrt_exact(a)", np.sqrt(a)),
        ("fma(a, b, a)", np.float32(float(a) * float(b) + float(a))),
        ("add_apart(a, b)", a + b), ("multiply_apart(a, b)", a * b), ("maximum(a, c)", c), ("minimum(c, b)", c),
        ("max_f32(a, c)", a), ("min_f32(c, b)", b), ("maximum(a, b)", a), ("minimum(a, b)", b), ("rint_f32(b)", -2),
        ("floor_f32(b)", -3), ("ceil_f32(b)", -2), ("bits_f32(0x40490FDB)", np.pi),
        (f"unpack_f16x2({f16x})[1]", -2.25), (f"unpack_bf16x2({bf16})[0]", 1.5),
        (f"unpack_bf16x2({bf16})[1]", -2.25),
    ]  # fmt: skip
    lines = ["a, b, c = np.float32(1.7), np.float32(-2.5), np.float32(np.nan)"]
    lines += [f"store_u32(x + {4 * i}, {text})" for i, (text, _) in enumerate(bits)]
    lines += [f"store_f32(x + {4 * (len(bits) + i)}, {text})" for i, (text, _) in enumerate(floats)]
    names = [name for name in INSTRUCTIONS if any(f"{name}(" in line for line in lines)]
    scope = {name: getattr(lang, name) for name in (*names, "store_u32", "store_f32")}
    made = run(generated(lines, scope, threads=1), np.zeros(len(bits) + len(floats), np.uint32), 0, 0.0)
    found = dict(zip((text for text, _ in bits), made[: len(bits)].tolist(), strict=True))
    assert found == {text: value & 0xFFFFFFFF for text, value in bits}
    np.testing.assert_allclose(made[len(bits) :].view(np.float32), np.float32([v for _, v in floats]), rtol=1e-3)
    untested = {n for n, each in INSTRUCTIONS.items() if each.is_pure and "d" not in each.results + each.arguments}
    assert untested <= {*names}, "a word of arithmetic is without a line here"


THREADS = 96


def test_reductions_of_a_block() -> None:
    load, store = lang.load_f32, lang.store_f32
    largest = warp.block_reduction(lang.maximum, np.float32, -np.inf)
    total, count = warp.block_sum, warp.block_reduction(warp.add_of, np.int64, 0)

    @cuda_kernel(threads=THREADS, blocks=lambda a: 1, x=PTR)
    def reduce(x):  # type: ignore[no-untyped-def]
        place = x + 4 * cuda.threadIdx.x
        value = load(place)
        made = total(value) + largest(value)
        store(place, made + np.float32(count(cuda.threadIdx.x)))

    data = np.random.default_rng(0).standard_normal(THREADS).astype(np.float32)
    wanted = data.sum(dtype=np.float64) + data.max() + THREADS * (THREADS - 1) // 2
    np.testing.assert_allclose(run(reduce, data), np.full(THREADS, wanted), rtol=1e-6)


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 12, 641, 65536, 999_983, 2**31 - 1])
def test_division_by_a_product(divisor: int) -> None:
    load, store = lang.load_u32, lang.store_u32

    @cuda_kernel(threads=32, blocks=lambda a: 1, x=PTR, magic=I64, shift=I64)
    def divide(x, magic, shift):  # type: ignore[no-untyped-def]
        place = x + 4 * cuda.threadIdx.x
        store(place, fast_divide(load(place), magic, shift))

    edges = [0, 1, divisor - 1, divisor, divisor + 1, 2 * divisor - 1, 2**31 - 1]
    data = np.resize(np.array([min(e, 2**31 - 1) for e in edges], np.uint32), 32)
    np.testing.assert_array_equal(run(divide, data, *divider(divisor)), data // np.uint32(divisor))


COUNT, WIDE = 3, False


def test_static_loops_and_branches_are_written_out() -> None:
    load, store = lang.load_f32, lang.store_f32

    @cuda_kernel(threads=32, blocks=lambda a: 1, unrolled=True, x=PTR)
    def stepwise(x):  # type: ignore[no-untyped-def]
        total = np.float32(1 if static(WIDE) else 0)
        for i in static_range(COUNT):
            for j in static_range(i + 1):
                total += load(x + 4 * (COUNT * i + j))
        if static(WIDE):
            missing(x)  # type: ignore[name-defined] # noqa: F821
        store(x + 4 * cuda.threadIdx.x, total)

    data = np.arange(32, dtype=np.float32)
    np.testing.assert_array_equal(run(stepwise, data), np.full(32, 0 + 3 + 4 + 6 + 7 + 8, np.float32))
    assert "bra" not in ptx(stepwise, SM_80)


def test_what_is_not_static_is_refused_with_its_line() -> None:
    @cuda_kernel(threads=32, blocks=lambda a: 1, unrolled=True, x=PTR, n=I64)
    def loop(x, n):  # type: ignore[no-untyped-def]
        for i in static_range(n):
            lang.store_f32(x + i, 0)

    with pytest.raises(KernelError, match=rf"{__file__}:\d+: static: got `n`"):
        ptx(loop, SM_80)


def test_a_file_that_was_changed_behind_the_process_is_no_source(tmp_path: Path) -> None:
    """Else another body would be kept under the digest of the one that was imported."""
    text = (
        "from bolt_numba.kernels.cuda.declare import PTR, cuda_kernel\n"
        "from bolt_numba.kernels.cuda.language.lang import load_f32, static_range, store_f32\n\n\n"
        "@cuda_kernel(threads=32, blocks=lambda a: 1, unrolled=True, x=PTR)\n"
        "def changed(x):\n"
        "    for i in static_range(2):\n"
        "        store_f32(x + 4 * i, load_f32(x + 4 * i) + load_f32(x))\n"
    )
    path, scope = tmp_path / "changed.py", {}
    path.write_text(text)
    exec(compile(text, str(path), "exec", dont_inherit=True), scope)
    path.write_text(text.replace(") + load", ") - load"))
    with pytest.raises(KernelError, match=rf"{path}:5: changed: got a file that was changed since it was imported"):
        ptx(scope["changed"], SM_80)
    path.write_text(text)
    linecache.clearcache()
    assert "add" in ptx(scope["changed"], SM_90A)


def test_f32_kernels_compute_nothing_in_f64_for_their_literals() -> None:
    load, store = lang.load_f32, lang.store_f32
    half = np.float32(0.5)

    @cuda_kernel(threads=32, blocks=lambda a: 1, x=PTR)
    def halve(x):  # type: ignore[no-untyped-def]
        store(x, load(x) * half)

    assert ".f64" not in ptx(halve, SM_80)
    assert struct.unpack("<f", run(halve, np.float32([3] * 32))[:1].tobytes()) == (1.5,)


@inline
def broken(x):  # type: ignore[no-untyped-def]
    return x.missing


def test_mistakes_are_told_with_their_line() -> None:
    store = lang.store_f32

    @cuda_kernel(threads=32, blocks=lambda a: 1, x=PTR)
    def unknown_name(x):  # type: ignore[no-untyped-def]
        store_f32(x, 0)  # type: ignore[name-defined] # noqa: F821

    @cuda_kernel(threads=32, blocks=lambda a: 1, x=PTR)
    def wrong_type(x):  # type: ignore[no-untyped-def]
        store(x, "a text")

    @cuda_kernel(threads=32, blocks=lambda a: 1, x=PTR)
    def wrong_helper(x):  # type: ignore[no-untyped-def]
        store(x, broken(x))

    @cuda_kernel(threads=32, blocks=lambda a: 1, x=PTR)
    def rolled(x):  # type: ignore[no-untyped-def]
        for _ in static_range(2):
            store(x, 0)

    place = r"tests/cuda/test_language.py:\d+: "
    for kernel, wanted in (
        (unknown_name, f"{place}kernel 'unknown_name': name: got 'store_f32', .* import it from .*cuda.language"),
        (wrong_type, f"{place}kernel 'wrong_type': cannot be compiled: got `store\\(x, \"a text\"\\)`"),
        (wrong_helper, f"{place}helper 'broken': cannot be compiled: got `return x.missing`.*kernel 'wrong_helper'"),
        (rolled, "word 'static_range': got it in a kernel that is not unrolled"),
    ):
        for _ in range(2):  # the second time at once
            with pytest.raises(KernelError, match=wanted):
                ptx(kernel, SM_80)
