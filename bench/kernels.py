"""Every kernel on shapes of real networks, on one core: ``python -m bench.kernels [--only Conv,MatMul]``.

All kernels that accept a case are timed, not only the one that would be chosen; a kernel that no layer of
`bench.layers` reaches, on the largest of some test cases of its operator.  Work is counted without tricks and told as a
part of the f32 peak, so Winograd, Strassen and bf16 can pass 100 %; products of bytes as a part of their own peak.
Bytes are inputs read and outputs written once, so a case that stays in a cache can pass 100 % of the copy bandwidth.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.arithmetic import copy_bandwidth
from bench.layers import Case, largest_test_case, layers
from bench.page import fill
from bench.peak import byte_peak_gops, peak_gflops
from bench.report import markdown, text
from bolt_numba.errors import BoltError
from bolt_numba.kernels.registry import KERNELS, Entry, load
from bolt_numba.ops.arrays import gather
from bolt_numba.ops.layers.products.matmul_forms import MatMulForm
from tests.harness import Planned, plan, timed

HEAD = ["operator", "layer", "kernel", "us", "GFLOP/s", "% of peak", "GB/s", "% of copy"]


def planned_on(entry: Entry, case: Case) -> Planned | None:
    """The kernel on the case, its weights constant; None where it does not accept."""
    constant = [i > 0 and case.flop > 0 for i in range(len(case.inputs))]
    constant = [c or (a is not None and a.size <= 64) for c, a in zip(constant, case.inputs, strict=True)]
    return plan(entry, case.inputs, constant, instance=case.op)


def row(entry: Entry, case: Case, planned: Planned, peak: float, copy: float) -> list[str]:
    """A line of the table."""
    seconds = max(timed(planned, case.inputs, repeat=5), 1e-9)
    seconds = max(timed(planned, case.inputs, repeat=max(5, min(2000, int(0.15 / seconds)))), 1e-9)
    looked_up = isinstance(case.op, (gather.Gather, gather.GatherND))  # reads as much as it writes, not the whole table
    moved = sum(a.nbytes for a in case.inputs if a is not None and not looked_up)
    moved += sum(t.nbytes for t in planned.outs) * (2 if looked_up else 1)
    return [
        type(case.op).__name__, case.label, entry.name, f"{seconds * 1e6:.1f}",
        f"{case.flop / seconds / 1e9:.1f}" if case.flop else "-",
        f"{100 * case.flop / seconds / 1e9 / peak:.0f}" if case.flop else "-",
        f"{moved / seconds / 1e9:.1f}", f"{100 * moved / seconds / 1e9 / copy:.0f}",
    ]  # fmt: skip


def is_of_bytes(case: Case) -> bool:
    """Whether both factors of its products are bytes, or are made bytes; two planes of bytes count as one product."""
    if isinstance(case.op, MatMulForm):
        return True
    found = [a for a in case.inputs if a is not None and a.size > 1]
    return case.flop > 0 and found[0].dtype.itemsize == 1


def rows(case: Case, peak: float, copy: float) -> Iterator[list[str]]:
    """A line for each kernel that accepts the case; first the one chosen for f32."""
    entries = KERNELS.get((type(case.op), "cpu"), ())
    for entry in sorted(entries, key=lambda e: e.precision != "f32"):
        planned = planned_on(entry, case)
        if planned is not None:
            yield row(entry, case, planned, peak, copy)


def leftovers(reached: set[str], peak: float, copy: float) -> Iterator[list[str]]:
    """A line for each kernel that no layer reached; a dash for its time where no test case does either."""
    entries = {e.name: e for found in KERNELS.values() for e in reversed(found) if e.name not in reached}
    for name, entry in sorted(entries.items()):
        case = largest_test_case(entry.op, lambda c, e=entry: planned_on(e, c) is not None)  # type: ignore[misc]
        planned = None if case is None else planned_on(entry, case)
        if case is None or planned is None:
            yield [entry.op.__name__, "no case", name, *"-----"]
        else:
            yield row(entry, case, planned, peak, copy)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="bench.kernels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="operators, with commas")
    parser.add_argument("--page", type=Path, help="write chosen kernels into the part `kernels` of this page")
    args = parser.parse_args(argv)
    wanted = set(args.only.split(",")) if args.only else None
    peak, of_bytes, copy = peak_gflops(), byte_peak_gops(), copy_bandwidth(1)
    load("cpu")
    table, failed = [HEAD], []
    for case in layers():
        name = type(case.op).__name__
        if wanted is not None and name not in wanted:
            continue
        try:
            table += rows(case, of_bytes if is_of_bytes(case) else peak, copy)
        except BoltError as error:
            failed.append(f"{name}, {case.label}: {error}")
    if wanted is None:
        table += leftovers({line[2] for line in table}, peak, copy)
    lines = [f"one core: {peak:.0f} GFLOP/s, {of_bytes:.0f} GOP/s of bytes, copy {copy:.0f} GB/s", text(table), *failed]
    sys.stdout.write("\n".join(lines) + "\n")
    if args.page is not None:
        chosen = list({(line[0], line[1]): line for line in reversed(table[1:])}.values())[::-1]
        fill(args.page, {"kernels": f"{lines[0]}\n\n{markdown([HEAD, *chosen])}"})


if __name__ == "__main__":
    main()
