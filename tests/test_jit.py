"""The kernel language: every word against NumPy on every instruction set, the cache, and what machine code may call."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bolt_numba.kernels import jit, machine_code
from bolt_numba.kernels.cpu.language import lang
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.jit import F32, I32, I64, PTR, Native, inline, native, native_source

L = lang.LANES
RNG = np.random.default_rng(1)


def words(expression: str, **fields: Any) -> Native:
    """A kernel of one statement block over p.x, p.y (f32), p.i (i32) and p.out."""
    names = sorted(set(re.findall(r"[A-Za-z_]\w*", expression)) & set(lang.WORDS))
    scope = {name: getattr(lang, name) for name in names} | {"np": np, "L": L}
    text = "def probe(p, tid, nthreads):\n" + "".join(f"    {line}\n" for line in expression.splitlines())
    kinds = {"x": PTR, "y": PTR, "i": PTR, "out": PTR, "n": I64}
    return native_source(text, "probe", kinds, **scope)


def run(expression: str, n: int = 0, out: Any = None) -> tuple[Any, Any, Any, Any]:
    x = RNG.integers(-40, 40, 2 * L).astype("f4") + np.float32(0.5)
    y = RNG.integers(1, 9, 2 * L).astype("f4")
    i = RNG.integers(0, 31, 2 * L).astype("i4")
    out = np.full(2 * L, -7, "f4") if out is None else out
    words(expression).run(x=x, y=y, i=i, out=out, n=n)
    return x[:L], y[:L], i[:L], out


VECTOR_WORDS = {
    "vload(p.x) + vload(p.y)": lambda x, y, i: x + y,
    "vload(p.x) - 2.0": lambda x, y, i: x - np.float32(2),
    "3 * vload(p.x)": lambda x, y, i: 3 * x,
    "vload(p.x) / vload(p.y)": lambda x, y, i: x / y,
    "-vload(p.x)": lambda x, y, i: -x,
    "fma(vload(p.x), vload(p.y), splat(np.float32(1)))": lambda x, y, i: x * y + 1,
    "select(vload(p.x) < vload(p.y), vload(p.x), vload(p.y))": lambda x, y, i: np.where(x < y, x, y),
    "select((vload(p.x) > 0.0) & ~(vload(p.x) >= 9.0), vload(p.x), splat(0.0))": lambda x, y, i: np.where(
        (x > 0) & ~(x >= 9), x, 0
    ),
    "select((vload(p.x) == vload(p.y)) | (vload(p.x) != vload(p.x)), splat(1.0), splat(0.0))": lambda x, y, i: x == y,
    "vmax(vload(p.x), vload(p.y))": lambda x, y, i: np.maximum(x, y),
    "vmin(vload(p.x), vload(p.y))": lambda x, y, i: np.minimum(x, y),
    "vmaximum(vload(p.x), splat(np.float32(np.nan)))": lambda x, y, i: np.full(L, np.nan, "f4"),
    "vabs(vload(p.x))": lambda x, y, i: abs(x),
    "vsqrt(vload(p.y))": lambda x, y, i: np.sqrt(y),
    "vfloor(vload(p.x))": lambda x, y, i: np.floor(x),
    "vceil(vload(p.x))": lambda x, y, i: np.ceil(x),
    "vround(vload(p.x))": lambda x, y, i: np.rint(x),
    "vtrunc(vload(p.x))": lambda x, y, i: np.trunc(x),
    "copysign(vload(p.y), vload(p.x))": lambda x, y, i: np.copysign(y, x),
    "to_f32(to_i32(vload(p.x)))": lambda x, y, i: x.astype("i4"),
    "to_f32(vload_i32(p.i) + 3)": lambda x, y, i: i + 3,
    "to_f32(((vload_i32(p.i) << 3) >> 1) & 12 | 64 ^ vload_i32(p.i))": lambda x, y, i: ((i << 3) >> 1) & 12 | 64 ^ i,
    "f32_of_bits(bits_of(vload(p.x)))": lambda x, y, i: x,
    "to_f32(shift_right_logical(-vload_i32(p.i), splat(28)))": lambda x, y, i: (-i).view("u4") >> 28,
    "to_f32(iota())": lambda x, y, i: np.arange(L),
    "vload_n(p.x, L - 1)": lambda x, y, i: np.where(np.arange(L) < L - 1, x, 0),
    "vload_m(p.x, lanes_below(3))": lambda x, y, i: np.where(np.arange(L) < 3, x, 0),
    "to_f32(vload_i32_n(p.i, 3))": lambda x, y, i: np.where(np.arange(L) < 3, i, 0),
    "vgather(p.x, iota() ^ 1)": lambda x, y, i: x[np.arange(L) ^ 1],
    "interleave_low(vload(p.x), vload(p.y))": lambda x, y, i: np.stack([x, y], 1).reshape(-1)[:L],
    "interleave_high(vload(p.x), vload(p.y))": lambda x, y, i: np.stack([x, y], 1).reshape(-1)[L:],
    "even_lanes(vload(p.x), vload(p.y))": lambda x, y, i: np.concatenate([x, y])[::2],
    "odd_lanes(vload(p.x), vload(p.y))": lambda x, y, i: np.concatenate([x, y])[1::2],
    "permute(vload(p.x), (vload_i32(p.i) & 1) ^ iota())": lambda x, y, i: x[(i & 1) ^ np.arange(L)],
    "with_lane(vload(p.x), 2, 5.0)": lambda x, y, i: np.where(np.arange(L) == 2, 5, x),
    "to_f32(vload_u8(p.i))": lambda x, y, i: np.frombuffer(i.tobytes(), "u1")[:L],
    "to_f32(vload_i8(p.i))": lambda x, y, i: np.frombuffer(i.tobytes(), "i1")[:L],
    "to_f32(vload_u8_n(p.i, 2))": lambda x, y, i: np.where(np.arange(L) < 2, np.frombuffer(i.tobytes(), "u1")[:L], 0),
}


DOUBLE_WORDS = {
    "vload_widened(p.x) + vload_widened(p.y)": lambda x, y: x + y,
    "-(vload_widened(p.x) - 0.1)": lambda x, y: 0.1 - x,
    "fma(vload_widened(p.x), splat_f64(0.1), vload_widened(p.y) * 0.3)": lambda x, y: x * 0.1 + y * 0.3,
    "vload_widened(p.x) / vload_widened(p.y)": lambda x, y: x / y,
}


@pytest.mark.parametrize("expression", DOUBLE_WORDS)
def test_words_vectors_of_f64(expression: str) -> None:
    """They hold half as many numbers, and become f32 again by rounding once."""
    x, y, _, out = run(f"vstore(p.out, {expression})\nvstore_narrowed(p.out + {4 * L}, vload_f64(p.out))")
    wanted = DOUBLE_WORDS[expression](x[: L // 2].astype("f8"), y[: L // 2].astype("f8"))
    np.testing.assert_allclose(out[:L].view("f8"), wanted, rtol=1e-15)
    np.testing.assert_array_equal(out[L : L + L // 2], wanted.astype("f4"))
    assert (out[L + L // 2 :] == -7).all()


@pytest.mark.parametrize("expression", VECTOR_WORDS)
def test_words_vectors(expression: str) -> None:
    x, y, i, out = run(f"vstore(p.out, {expression})")
    np.testing.assert_array_equal(out[:L], np.asarray(VECTOR_WORDS[expression](x, y, i)).astype("f4"))
    assert (out[L:] == -7).all()


SCALAR_WORDS = {
    "reduce_add(vload(p.x))": lambda x, y, i: x.sum(),
    "reduce_mul(vload(p.y))": lambda x, y, i: np.prod(y.astype("f8")),
    "reduce_max(vload(p.x))": lambda x, y, i: x.max(),
    "reduce_min(vload(p.x))": lambda x, y, i: x.min(),
    "lane(vload(p.x), 1)": lambda x, y, i: x[1],
    "load_f32(p.x + 4) + load_i32(p.i)": lambda x, y, i: x[1] + i[0],
    "np.float32(mask_bits(vload(p.x) > 3.0))": lambda x, y, i: ((x > 3) << np.arange(len(x))).sum(),
    "1.0 if any_lane(vload(p.x) > 39.0) else 0.0": lambda x, y, i: float((x > 39).any()),
    "1.0 if all_lanes(vload(p.x) < 41.0) else 0.0": lambda x, y, i: float((x < 41).all()),
    "view(p.x, (2, L), np.float32)[0, 3]": lambda x, y, i: x[3],
}


@pytest.mark.parametrize("expression", SCALAR_WORDS)
def test_words_scalars(expression: str) -> None:
    x, y, i, out = run(f"store_f32(p.out, {expression})")
    np.testing.assert_allclose(out[0], SCALAR_WORDS[expression](x, y, i), rtol=1e-6)


@pytest.mark.parametrize("n", range(L + 2))
def test_words_masked_store(n: int) -> None:
    x, _, _, out = run("vstore_n(p.out, vload(p.x), p.n)", n)
    want = np.full(2 * L, -7, "f4")
    want[: min(n, L)] = x[: min(n, L)]
    np.testing.assert_array_equal(out, want)


def test_words_count_bits() -> None:
    """Bytes hold the counts of 31 words at most; a stored tile is added."""
    x, y = (RNG.integers(-(2**31), 2**31, 4 * L).astype("i4") for _ in range(2))
    out = np.full(4 * L, 5, "i4").view("f4")
    words(
        "t = tile_zeros(2, 2)\nfor q in range(2):\n"
        "    t = tile_count_rows(t, rows_strided(2, p.x, 8), 4 * q, p.y + 8 * L * q)\n"
        f"t = t if {target().has_popcount} else tile_sum_bytes(t)\n"
        "tile_store(tile_add_integers(t, p.out, 8 * L), p.out, 8 * L)"
    ).run(x=x, y=y, i=x, out=out, n=0)
    differ = x[:4].reshape(2, 2, 1) ^ y.reshape(2, 2 * L)
    wanted = 5 + np.bitwise_count(differ.view("u4")).sum(axis=1)
    np.testing.assert_array_equal(out.view("i4").reshape(2, 2 * L), wanted)


def test_words_bfloat16_rounds_to_nearest_even() -> None:
    import ml_dtypes

    x, _, _, out = run("vstore_bf16(p.out, vload(p.x) * 1.2345678)\nvstore(p.out + 4 * L, vload_bf16(p.out))")
    np.testing.assert_array_equal(out[L:], (x * np.float32(1.2345678)).astype(ml_dtypes.bfloat16).astype("f4"))


def test_words_bfloat16_pairs() -> None:
    import ml_dtypes

    def rounded(v: Any) -> Any:
        return v.astype(ml_dtypes.bfloat16).view("u2")

    third, fifth = "vload(p.x) * 0.333333", "vload(p.y) * -0.2"
    x, y, _, out = run(f"vstore_bf16_two(p.out, {third}, {fifth})\nvstore(p.out + 4 * L, pair_bf16({third}, {fifth}))")
    first, second = rounded(x * np.float32(0.333333)), rounded(y * np.float32(-0.2))
    np.testing.assert_array_equal(out[:L].view("u2"), np.concatenate([first, second]))
    np.testing.assert_array_equal(out[L:].view("u2"), np.stack([first, second], 1).reshape(-1))
    x = np.array([np.nan, np.inf, -np.inf, 3.4e38, -0.0, 1.0, 1.00390625, 1.01171875] * L, "f4")[: 2 * L]
    words("vstore_bf16_two(p.out, vload(p.x), vload(p.x + 4 * L))").run(x=x, y=x, i=x, out=out, n=0)
    got = out[:L].view(ml_dtypes.bfloat16).astype("f4")
    np.testing.assert_array_equal(got, x.astype(ml_dtypes.bfloat16).astype("f4"))


@pytest.mark.parametrize(("mr", "nv"), [(1, 1), (3, 2)])
def test_words_bfloat16_products(mr: int, nv: int) -> None:
    import ml_dtypes

    text = f"""
def probe(p, tid, nthreads):
    acc = tile_load({mr}, {nv}, p.c, {4 * nv * L})
    rows = rows_strided({mr}, p.a, 4 * p.k)
    for q in range(p.k):
        acc = tile_dot_rows_bf16(acc, rows, 4 * q, p.b + {4 * nv * L} * q)
    tile_store(acc, p.c, {4 * nv * L})
"""
    scope = {n: getattr(lang, n) for n in ("tile_load", "rows_strided", "tile_dot_rows_bf16", "tile_store")}
    kernel = native_source(text, "probe", {"a": PTR, "b": PTR, "c": PTR, "k": I64}, **scope)
    a = RNG.integers(-4, 5, (mr, 10)).astype("f4")
    b = RNG.integers(-4, 5, (5, nv * L, 2)).astype("f4")
    c = RNG.integers(-4, 5, (mr, nv * L)).astype("f4")
    want = c + a @ b.transpose(0, 2, 1).reshape(10, nv * L)
    kernel.run(a=a.astype(ml_dtypes.bfloat16).view("u2"), b=b.astype(ml_dtypes.bfloat16).view("u2"), c=c, k=5)
    np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize(("mr", "nv", "cols"), [(1, 1, L), (3, 2, 2 * L), (3, 2, L + 1), (2, 2, 1), (4, 1, L - 1)])
def test_words_tiles(mr: int, nv: int, cols: int) -> None:
    text = f"""
def probe(p, tid, nthreads):
    acc = tile_zeros({mr}, {nv})
    rows = rows_strided({mr}, p.a, 4 * p.k)
    for q in range(p.k):
        acc = tile_rank1(acc, p.a + 4 * q, 4 * p.k, p.b + 4 * p.nb * q)
        acc = tile_rank1_rows(acc, rows, 4 * q, p.b + 4 * p.nb * q)
    acc = tile_add_row(acc, p.b)
    acc = tile_add_row_n(acc, p.b, p.n)
    acc = tile_add_tile(acc, tile_load_n({mr}, {nv}, p.c, 4 * p.n, p.n))
    acc = tile_map(tile_scale(acc, 2.0), twice)
    acc = tile_set(acc, 0, 0, tile_get(acc, 0, 0) + 1.0)
    tile_store_n(tile_clamp(acc, -150.0, 1e9), p.c, 4 * p.n, p.n)
"""
    scope = {n: getattr(lang, n) for n in lang.WORDS if n.startswith(("tile", "rows"))}
    kinds = {"a": PTR, "b": PTR, "c": PTR, "k": I64, "n": I64, "nb": I64}
    kernel = native_source(text, "probe", kinds, twice=twice, **scope)
    k = 5
    a = RNG.integers(-4, 5, (mr, k)).astype("f4")
    b = RNG.integers(-4, 5, (k, nv * L)).astype("f4")
    c = RNG.integers(-4, 5, (mr, cols)).astype("f4")
    want = 4 * (2 * (a @ b)[:, :cols] + 2 * b[0, :cols] + c)
    want[0, :L] += 1
    kernel.run(a=a, b=b, c=c, k=k, n=cols, nb=nv * L)
    np.testing.assert_array_equal(c, np.maximum(want, -150))


@inline
def twice(v: Any) -> Any:
    return v + v


@native(x=PTR, n=I64, alpha=F32, shift=I32)
def scale(p: Any, tid: int, nthreads: int) -> None:
    x = lang_view(p.x, p.n, np.float32)
    lo, hi = split(p.n, tid, nthreads)
    for i in range(lo, hi):
        x[i] = x[i] * p.alpha + p.shift


lang_view = lang.view
split = lang.split


def test_record_is_aligned_and_split_covers_all() -> None:
    x = np.arange(37, dtype="f4")
    scale.run(nthreads=3, x=x, n=37, alpha=2, shift=1)
    np.testing.assert_array_equal(x, 2 * np.arange(37) + 1)
    with pytest.raises(TypeError, match="beyond"):
        scale.record(x=x, n=1, alpha=1, shift=0, more=2)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path


def fresh(factor: int) -> Native:
    text = f"def probe(p, tid, nthreads):\n    store_i64(p.x, load_i64(p.x) * {factor})\n"
    kernel = native_source(text, "probe", {"x": PTR}, store_i64=lang.store_i64, load_i64=lang.load_i64)
    return Native(kernel.body, kernel.name, kernel.fields, kernel.fastmath)


def times(kernel: Native) -> int:
    x = np.array([7])
    kernel.run(x=x)
    return int(x[0])


def test_cache_is_used_and_damage_is_noticed(empty_cache: Path) -> None:
    seen: list[tuple[str, bool]] = []
    stop = jit.on_compile(lambda name, done: seen.append((name, done)))
    try:
        assert times(fresh(3)) == 21
        assert seen == [("probe", False), ("probe", True)]
        (entry,) = jit.cache_entries()
        assert entry[0].startswith("probe-")
        assert entry[1] > 40
        code = jit.read_kernel(next(empty_cache.glob("*/*.kernel")))
        file = next(empty_cache.glob("*/*.kernel"))
        for damaged in (b"", file.read_bytes()[:-5], b"x" * 500):
            file.write_bytes(damaged)
            assert jit.read_kernel(file) is None
        assert code is not None
        assert times(fresh(4)) == 28
        assert len(seen) == 4
        assert jit.clear_cache() == 2
        assert jit.cache_entries() == []
    finally:
        stop()


def test_a_constant_or_a_helper_changes_the_digest() -> None:
    def with_factor(factor: int) -> Native:
        @native(x=PTR)
        def probe(p: Any, tid: int, nthreads: int) -> None:
            lang.store_i64(p.x, factor)

        return probe

    def with_helper(factor: int) -> str:
        helper = jit.inline_source(f"def helper(x):\n    return x * {factor}\n", "helper")
        return native_source("def f(p, tid, nthreads):\n    helper(p.x)\n", "f", {"x": PTR}, helper=helper).digest

    assert with_factor(1).digest == with_factor(1).digest != with_factor(2).digest
    assert with_helper(1) == with_helper(1) != with_helper(2)
    assert fresh(5).digest != fresh(6).digest


def test_a_cached_kernel_runs_without_numba(empty_cache: Path) -> None:
    program = (
        "import sys, numpy as np\n"
        "from bolt_numba.kernels.cpu.language import lang\n"
        "from bolt_numba.kernels.jit import native_source, PTR\n"
        "k = native_source('def f(p, tid, nthreads):\\n    store_i64(p.x, 5)\\n', 'f', {'x': PTR},"
        " store_i64=lang.store_i64)\n"
        "x = np.zeros(1, 'i8'); k.run(x=x); assert x[0] == 5\n"
        "sys.stdout.write(str('numba' in sys.modules))\n"
    )
    for expected in ("True", "False"):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=1200, check=True)
        assert done.stdout == expected


ALLOWED = {"memcpy", "memset", "memmove", "sem_wait", "sem_trywait", "sem_post", "sched_yield"}
LIBM = {"floorf", "ceilf", "rintf", "truncf", "floor", "ceil", "rint", "trunc", "fmaf", "fma", "fmodf", "fmod", "pow"}


def undefined(code: bytes, folder: Path) -> set[str]:
    """Undefined symbols of a blob, or of an ELF object, read by LLVM."""
    if machine_code.is_blob(code):
        return {name for _, name in machine_code.calls_of(code)}
    nm = next((p for p in ("nm", "llvm-nm") for d in os.get_exec_path() if (Path(d) / p).exists()), None)
    if nm is None:
        pytest.skip("no nm")
    file = folder / "kernel.o"
    file.write_bytes(code)
    text = subprocess.run([nm, "-u", str(file)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in text.splitlines()}


def test_machine_code_needs_only_libc(tmp_path: Path) -> None:
    every = [words("vstore(p.out, vfloor(vload(p.x)))"), scale, fresh(1)]
    for kernel in every:
        assert kernel.address
        code = jit.read_kernel(jit._path(kernel))
        assert code is not None
        assert undefined(code, tmp_path) <= ALLOWED | LIBM, kernel.name
    for file in jit.cache_dir().glob("*.kernel"):
        assert undefined(jit.read_kernel(file) or b"", tmp_path) <= ALLOWED | LIBM, file.name


def test_threads_may_ask_for_one_address(empty_cache: Path) -> None:
    kernel, seen = fresh(11), []
    team = [threading.Thread(target=lambda: seen.append(kernel.address)) for _ in range(4)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    assert len(set(seen)) == 1


def test_the_example_of_the_documentation_runs(tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "docs" / "kernels.md").read_text().split("```python\n")[1].split("```")[0]
    file = tmp_path / "example.py"
    check = "np.testing.assert_array_equal(result, np.where(given > 0, given, given * np.float32(0.1)))\n"
    file.write_text(text + check)
    subprocess.run([sys.executable, str(file)], timeout=1200, check=True)


def test_words_exist() -> None:
    from bolt_numba.kernels.compiler import word

    for name in lang.WORDS:
        assert word(name) is not None
    with pytest.raises(AttributeError, match="no_such_word"):
        lang.no_such_word  # noqa: B018


def test_unknown_instruction_set_is_refused() -> None:
    from bolt_numba.errors import DeviceError

    target.cache_clear()
    old = os.environ.get("BOLT_NUMBA_ISA")
    os.environ["BOLT_NUMBA_ISA"] = "sse9"
    try:
        with pytest.raises(DeviceError, match="sse9"):
            target()
    finally:
        os.environ.pop("BOLT_NUMBA_ISA")
        if old is not None:
            os.environ["BOLT_NUMBA_ISA"] = old
        target.cache_clear()
