"""Every maker of CUDA kernels on the cases of its operator, on the simulated GPU, against the reference.

A maker is tested by being registered; one that takes no case fails, for its test would prove nothing.  What needs
larger operands, or other forms than the cases draw, has tests beside this one.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from bolt_numba import devices
from bolt_numba.errors import BoltError
from bolt_numba.ir.build import infer_types
from bolt_numba.kernels.extents import made_steps
from bolt_numba.kernels.registry import KERNELS, Entry, load
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.registry import result_tuple
from bolt_numba.types import F16, F32, NUMERICS, PRECISIONS, AnyDType, Array
from tests import test_kernels
from tests.cases import Case
from tests.cuda import harness
from tests.cuda.harness import GPU, run_op
from tests.cuda.test_products import whole
from tests.harness import PlainContext, contexts, types_of
from tests.level import few
from tests.near import assert_near
from tests.test_kernels import MORE, constants, features, many_cases, name_of, varied, way

load("cuda")
ENTRIES = [e for (_, device), rows in KERNELS.items() if device == "cuda" for e in rows]
EACH, MOST = few(2, 1), few(10, 4)
"""Cases in which each operand is given, each attribute set and each dtype drawn, as far as so many cases go."""
CHAINS = ("pointwise", "pointwise_in_place")
"""Makers of one text for many operators, which `test_elementwise` runs in all forms: a few cases show each formula."""
FEW = few(3, 1)
EXTRA = test_kernels.EXTRA | {
    "Conv-pixels_wgmma": Case(
        Conv(layout="NHWC"), (whole(0, (1, 8, 8, 64), F16), whole(1, (64, 64, 1, 1), F16), whole(2, (64,), F16))
    ),
}
"""Cases of kernels that no drawn case is large or rare enough for, operands but the first constants."""


def taken_cases(
    entry: Entry, dtype: AnyDType, drawn: Iterable[tuple[Case, bool]]
) -> Iterator[tuple[tuple[Case, list[int]], set[Any]]]:
    """Cases that a maker takes, operands of f32 given as ``dtype``, which operands are constants; their features."""
    for case, all_known in drawn:
        known = constants(case, all_known)
        inputs = tuple(
            a if a is None or a.dtype != F32 or i in case.op.value_inputs else a.astype(dtype)
            for i, a in enumerate(case.inputs)
        )
        ins = types_of(inputs, known)
        shown = features(case, all_known) | {(i, t.dtype) for i, t in enumerate(ins) if t is not None}
        if dtype != F32 and not is_inferred(case, ins):
            continue
        takes = entry.accepts(case.op, ins) or (entry.works is not None and entry.works(case.op, ins))
        outs = infer_types(case.op, ins)
        if takes and all(t.is_static for t in outs):
            shown.add(way(made_steps(entry, case.op, ins, [t.with_value(None) for t in outs], PlainContext(1))))
            yield (Case(case.op, inputs, case.exact, case.rtol), [i for i, yes in enumerate(known) if yes]), shown


def is_inferred(case: Case, ins: list[Any]) -> bool:
    """Whether the operator takes operands of other dtypes than were drawn."""
    try:
        infer_types(case.op, ins)
    except BoltError:
        return False
    return True


def check(entry: Entry, case: Case, known: list[int]) -> None:
    """At each level and precision that the maker looks at, in place of each operand that it may take over."""
    with np.errstate(all="ignore"):
        wanted = result_tuple(case.op.reference(*case.inputs))
    levels = NUMERICS[NUMERICS.index(max("default", entry.numerics, key=NUMERICS.index)) :]
    for context in contexts(list(dict.fromkeys((*levels, *NUMERICS))), PRECISIONS, threads=1):
        got = run_op(case.op, *case.inputs, constants=known, maker=entry.name, context=context)
        for mine, theirs in zip(got, wanted, strict=True):
            assert_close(mine, theirs, case)
    for i in entry.inplace:
        a = case.inputs[i] if i < len(case.inputs) and i not in known else None
        if a is not None and a.nbytes == got[0].nbytes:
            over = run_op(case.op, *case.inputs, constants=known, maker=entry.name, over=i, context=PlainContext(1))
            assert over[0].tobytes() == got[0].tobytes(), f"wrong in place of operand {i}"


def assert_close(got: Array, wanted: Array, case: Case) -> None:
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, wanted)
    else:
        is_half = any(a is not None and a.dtype == F16 for a in (*case.inputs, got))
        assert_near(got, wanted, 2e-3 if is_half else max(case.rtol, 1e-5))


@pytest.mark.parametrize("entry", ENTRIES, ids=name_of)
def test_kernel_equals_reference(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    if entry.arch not in ("", GPU.driver.arch):
        monkeypatch.setattr(harness, "GPU", devices.device(f"cuda-sim:{entry.arch}"))
    most = FEW if entry.name in CHAINS else MOST
    if entry.arch:  # `test_wgmma` has all tiles, which take their time
        most = 1

    def run(pair: tuple[Case, list[int]]) -> bool:
        check(entry, *pair)
        return True

    taken, seen = 0, Counter[Any]()
    extra = [(EXTRA[name_of(entry)], True)] if name_of(entry) in EXTRA else []
    for count, dtype in itertools.product(dict.fromkeys(MORE), (F32, F16)):
        for drawn in (extra, many_cases(entry.op, count)):
            taken += varied(list(taken_cases(entry, dtype, drawn)), seen, EACH, most - taken, run)
        if taken:
            return
    assert taken, f"{name_of(entry)}: takes none of the cases: add one that it takes to tests/cases"
