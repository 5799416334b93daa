"""Mistakes in kernel code: the error begins with the file and line to edit, and comes at once."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bolt_numba.errors import DeviceError, KernelError
from bolt_numba.kernels import numba_parts
from bolt_numba.kernels.cpu.language.lang import BYTES, splat, vload, vmax, vstore
from bolt_numba.kernels.instructions.processor import installed_version
from bolt_numba.kernels.jit import I64, PTR, Native, inline, native, native_source

COMPILER = "bolt_numba.kernels.compiler"  # imported by the tests that need it: it imports Numba
NUMBA = installed_version("numba")
HERE = Path(__file__).resolve().relative_to(Path.cwd())


def line_of(mark: str) -> int:
    """The line of this file that ends with a comment."""
    (found,) = [i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith(f"# {mark}")]
    return found


def declared(body: Callable[..., None]) -> Native:
    return native(x=PTR, y=PTR, n=I64)(body)


@inline
def product(v: Any, a: Any) -> Any:
    return v * a


@inline
def wrong_sum(v: Any) -> Any:
    return vmax(v, v + "x")  # sum


@inline
def outer(v: Any) -> Any:
    return wrong_sum(wrong_sum(v))


@inline
def outermost(v: Any) -> Any:
    return outer(outer(v))


@inline
def unknown_in_helper(v: Any) -> Any:
    return vmaxx(v, v)  # type: ignore[name-defined] # noqa: F821 # unknown helper


@declared
def unknown_word(p: Any, tid: int, nthreads: int) -> None:
    for i in range(p.n):
        vstore(p.y + i * BYTES, vmaxx(vload(p.x), splat(1.0)))  # type: ignore[name-defined] # noqa: F821 # unknown


@declared
def word_not_imported(p: Any, tid: int, nthreads: int) -> None:
    vstore(p.y, fma(vload(p.x), vload(p.x), splat(1.0)))  # type: ignore[name-defined] # noqa: F821 # not imported


@declared
def unknown_below(p: Any, tid: int, nthreads: int) -> None:
    vstore(p.y, unknown_in_helper(vload(p.x)))


@declared
def unknown_field(p: Any, tid: int, nthreads: int) -> None:
    x = p.x
    vstore(p.yy, vload(x))  # field


@declared
def unknown_attribute(p: Any, tid: int, nthreads: int) -> None:
    for i in range(p.n):
        vstore(p.y, vload(p.x + i.foo))  # attribute


@declared
def mixed(p: Any, tid: int, nthreads: int) -> None:
    v = 3
    if p.n > 3:
        v = vload(p.x)
    vstore(p.y, v)


@declared
def wrong_helper(p: Any, tid: int, nthreads: int) -> None:
    vstore(p.y, outermost(vload(p.x)))


@declared
def too_few(p: Any, tid: int, nthreads: int) -> None:
    vstore(p.y, product(vload(p.x)))  # few


@declared
def too_many_for_a_word(p: Any, tid: int, nthreads: int) -> None:
    vstore(p.y, vload(p.x), p.n, p.n)  # many


@declared
def record_as_vector(p: Any, tid: int, nthreads: int) -> None:
    vstore(p.y, vmax(vload(p.x), p))  # record


@declared
def raising(p: Any, tid: int, nthreads: int) -> None:
    if p.n < 0:
        raise ValueError("n")  # raise
    vstore(p.y, vload(p.x))


@pytest.mark.parametrize(
    ("kernel", "mark", "said"),
    [
        (raising, "raise", "kernel 'raising': got a raise or an assert, wanted none: exceptions do not leave kernels"),
        (unknown_word, "unknown", "kernel 'unknown_word': name: got 'vmaxx', wanted one .* perhaps 'vmax'"),
        (word_not_imported, "not imported", "name: got 'fma', .*: it is a word, import it from bolt_numba.kernels.cpu"),
        (unknown_below, "unknown helper", "helper 'unknown_in_helper': name: got 'vmaxx'"),
        (unknown_field, "field", "field of 'p': got 'yy', wanted one that @native declares, perhaps 'y'"),
        (unknown_attribute, "attribute", r"got `vstore\(.*i.foo\)\).*`: Unknown attribute 'foo' of type int64"),
        (wrong_helper, "sum", r"helper 'wrong_sum': cannot .* no implementation of add\(Vec.*'wrong_helper'\)"),
        (too_few, "few", "call of helper 'product': missing a required argument: 'a'"),
        (too_many_for_a_word, "many", "vstore.* positional arguments"),
        (record_as_vector, "record", "Cannot cast Record.* to Vec"),
        (mixed, None, "kernel 'mixed': cannot be compiled: got `.*`: Cannot unify .* for 'v"),
    ],
    ids=lambda x: x.name if isinstance(x, Native) else "",
)
def test_the_error_begins_with_the_line_to_edit(kernel: Native, mark: str | None, said: str) -> None:
    with pytest.raises(KernelError, match=said) as caught:
        kernel.address  # noqa: B018
    text = str(caught.value)
    assert text.startswith(f"{HERE}:{line_of(mark) if mark else ''}")
    assert "\n" not in text
    assert caught.value.__suppress_context__ or caught.value.__context__ is None  # no pages of Numba's own frames


def test_generated_text_has_lines_too() -> None:
    text = "def made(p, tid, nthreads):\n    x = p.x\n    vstore(x, vload(x).foo)\n"
    made = native_source(text, "made", {"x": PTR}, vstore=vstore, vload=vload)
    with pytest.raises(KernelError, match=r"^<bolt_numba made \w+>:3: kernel 'made': .*`vstore\(x, vload\(x\).foo\)`"):
        made.address  # noqa: B018


def test_what_is_refused_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba asks for a refused helper twice at each level, hypothesis for a refused kernel with every example."""
    compiler = importlib.import_module(COMPILER)
    tried: list[str] = []
    lower = compiler._lower

    def counted(function: Any, *rest: Any, **more: Any) -> Any:
        tried.append(function.__name__)
        return lower(function, *rest, **more)

    @inline
    def deepest(v: Any) -> Any:
        return v + "y"

    @inline
    def deep(v: Any) -> Any:
        return deepest(v)

    @declared
    def kernel(p: Any, tid: int, nthreads: int) -> None:
        vstore(p.y, deep(vload(p.x)))

    monkeypatch.setattr(compiler, "_lower", counted)
    for _ in range(3):
        with pytest.raises(KernelError, match="helper 'deepest'"):
            kernel.run(x=np.zeros(64, "f4"), y=np.zeros(64, "f4"), n=1)
    assert tried == ["kernel", "deep", "deepest"]


def test_a_numba_that_lacks_something_is_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module(COMPILER)
    assert numba_parts.lacking() == ""
    for name in ("numba.core.codegen.JITCodeLibrary._gone", "numba.core.gone.Class", "numba.core.compiler.gone"):
        text = numba_parts.lacking([*numba_parts.NEEDED, name])
        assert text.startswith(f"numba {NUMBA}: {name}: got none, wanted it")
        assert text.endswith(f"numba {numba_parts.WORKS} has it")
    library = importlib.import_module("numba.core.codegen").JITCodeLibrary
    owner = next(c for c in library.__mro__ if "_get_module_for_linking" in vars(c))
    monkeypatch.delattr(owner, "_get_module_for_linking")
    monkeypatch.delitem(sys.modules, COMPILER)
    with pytest.raises(DeviceError, match=r"JITCodeLibrary\._get_module_for_linking: got none"):
        importlib.import_module(COMPILER)


def test_looking_makes_no_code_generator() -> None:
    """It would have the processor's instructions, not those that `BOLT_NUMBA_ISA` forces."""
    code = (
        "from numba.core.registry import cpu_target\n"
        "from bolt_numba.kernels.numba_parts import lacking\n"
        "assert not lacking()\n"
        "made = [name for name in vars(cpu_target) if 'context' in name]\n"
        "assert not made, made\n"
        "cpu_target.target_context\n"
        "assert any('context' in name for name in vars(cpu_target))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_the_numba_that_works_is_the_numba_that_installs() -> None:
    """pyproject.toml, the message, and the version that runs these tests."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    (allowed,) = [x for x in project["dependencies"] if x.startswith("numba")]
    first, last = re.fullmatch(r"(0\.\d+) to (0\.\d+)", numba_parts.WORKS).groups()  # type: ignore[union-attr]
    assert allowed == f"numba>={first},<0.{int(last[2:]) + 1}"
    assert int(first[2:]) <= int(NUMBA.split(".")[1]) <= int(last[2:])
