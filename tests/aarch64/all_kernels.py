"""Every maker of an AArch64 twin on cases of its operator, under the emulator, against the reference.

``python -m tests.aarch64.all_kernels aarch64 --examples 3`` takes half an hour on two cores, most of which is
compiling; what is compiled is kept.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bolt_numba.kernels.registry import KERNELS, Entry
from bolt_numba.kernels.targets import device_of, twin
from bolt_numba.ops.registry import result_tuple
from tests.aarch64.remote import plan, run_planned
from tests.cases import CASES, Case
from tests.test_kernels import EXTRA, assert_close, constants, name_of


def entries(target: str) -> list[Entry]:
    """All makers of a twin."""
    twin(target)
    return [e for (_, device), rows in KERNELS.items() if device == device_of(target) for e in rows]


def check(entry: Entry, case: Case, all_known: bool) -> bool:
    """Run one case; False when the maker does not take it."""
    if entry.name.startswith("winograd"):  # its transforms round even whole numbers
        case = replace(case, exact=False, rtol=max(case.rtol, 1e-5))
    planned = plan(case.op, entry, case.inputs, constants(case, all_known))
    if planned is None:
        return False
    for got, wanted in zip(
        run_planned(planned, case.inputs), result_tuple(case.op.reference(*case.inputs)), strict=True
    ):
        assert_close(got, wanted, case, 0.0 if entry.precision == "f32" else 2e-2)
    return True


def taken_cases(entry: Entry, examples: int) -> int:
    """Check up to ``examples`` cases that the maker takes; how many there were."""
    taken = 0

    @settings(deadline=None, database=None, derandomize=True, max_examples=20 * examples, phases=(Phase.generate,),
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(case=CASES[entry.op](), all_known=st.booleans())
    def run(case: Case, all_known: bool) -> None:
        nonlocal taken
        if taken < examples:
            taken += check(entry, case, all_known)

    run()
    extra = EXTRA.get(name_of(entry))
    return taken + (extra is not None and check(entry, extra, True))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--examples", type=int, default=3)
    parser.add_argument("--only", default="")
    given: Any = parser.parse_args(arguments)
    bad = 0
    for entry in entries(given.target):
        name = name_of(entry)
        if not re.search(given.only, name):
            continue
        start = time.perf_counter()
        try:
            said = f"{taken_cases(entry, given.examples)} cases"
        except Exception as error:
            bad += 1
            said = f"FAILED: {type(error).__name__}: {str(error)[:1500]}"
        sys.stdout.write(f"{name}: {said} ({time.perf_counter() - start:.1f} s)\n")
        sys.stdout.flush()
    return bad


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
