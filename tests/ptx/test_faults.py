"""Planted bugs are found, and the same kernels without them run."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from bolt_numba.errors import BoltError, UnsupportedOpError
from bolt_numba_simulator.ptx import Checks, GlobalMemory, Module, SimulationError, SimulationReport
from bolt_numba_simulator.ptx import machine as machines
from bolt_numba_simulator.ptx import program as programs
from tests.ptx.kit import HEAD, kernel, put, run

X = np.arange(256, dtype=np.uint32)
SHARED = ".shared .align 16 .b8 s[2048];\n"
OWN = "mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2;\n"
"""%r3: address of the thread's own word in shared memory."""
LOAD = "add.s64 %a21, %a0, %a20; ld.global.u32 %r4, [%a21];\n"
STORE = "add.s64 %a22, %a1, %a20; st.global.u32 [%a22], %r5;\n"
WINDOW = "mov.u32 %r3, s; cvt.u64.u32 %a21, %r3; cvta.shared.u64 %a22, %a21;"
OTHER = "xor.b32 %r6, %r2, 128; add.u32 %r7, %r1, %r6;\n"
"""%r7: address of the word of a thread of another warp."""


def found(message: str, body: str, x: Any = X, threads: int = 64, **options: Any) -> str:
    with pytest.raises(SimulationError, match=message) as caught:
        run(body, x, np.zeros(256, np.uint32), threads, before=SHARED, **options)
    return str(caught.value)


def fine(body: str, threads: int = 64, **options: Any) -> Any:
    return run(body, X, np.zeros(256, np.uint32), threads, before=SHARED, **options)


def test_an_error_says_where_and_who() -> None:
    text = found("global memory out of bounds", LOAD, x=X[:40])
    assert "ld.global.u32 %r4, [%a21]" in text
    assert "block (0, 0, 0), thread (40, 0, 0)" in text
    assert "160 bytes into an allocation of 160" in text
    line = int(re.findall(r"line (\d+)", text)[0])
    assert "ld.global.u32" in kernel(LOAD, before=SHARED).splitlines()[line - 1]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("add.s64 %a21, %a0, 2; ld.global.u32 %r4, [%a21];", "misaligned access of 4 bytes"),
        ("mov.u64 %a21, 0; ld.global.u32 %r4, [%a21];", "null pointer"),
        (WINDOW + "ld.global.u32 %r4, [%a22];", "of shared memory"),
        ("ld.shared.u32 %r4, [%a0];", "an address of global memory"),
        ("mov.u32 %r3, 8000; ld.shared.u32 %r4, [%r3];", "shared memory out of bounds"),
        (OWN + "ld.shared.u32 %r4, [%r3];", "uninitialised shared memory"),
        ("st.global.v4.u32 [%a1+1016], {%r1,%r2,%r3,%r4};", "misaligned"),
        (".local .align 4 .b8 d[16]; mov.u64 %a21, d; st.local.u32 [%a21+16], %r0;", "local memory out of bounds"),
        ("trap;", "trap"),
    ],
)  # fmt: skip
def test_addresses(body: str, message: str) -> None:
    found(message, body)


def test_reads_of_what_was_never_written() -> None:
    memory = GlobalMemory()
    x, y = memory.allocate(1024), memory.allocate(1024)
    module = Module(kernel(LOAD + "mov.u32 %r5, %r4;" + STORE))
    with pytest.raises(SimulationError, match="uninitialised global memory"):
        module.launch(memory, (1,), 64, [x, y])
    module.launch(memory, (1,), 64, [x, y], checks=Checks(uninitialised=False))
    memory.write(x, X[:64])
    module.launch(memory, (1,), 64, [x, y])
    with pytest.raises(SimulationError, match="uninitialised global memory"):
        module.launch(memory, (1,), 65, [x, y])


def test_use_after_free_and_reuse() -> None:
    memory = GlobalMemory()
    x, y = put(memory, X), put(memory, X)
    module = Module(kernel(LOAD + "mov.u32 %r5, %r4;" + STORE))
    memory.free(x)
    with pytest.raises(SimulationError, match="memory that was freed"):
        module.launch(memory, (1,), 64, [x, y])
    with pytest.raises(SimulationError, match="1024 bytes into an allocation of 1024"):
        memory.read(y + 1024, np.zeros(4, np.uint32))
    top = memory.top
    for _ in range(300):
        memory.free(memory.allocate(1024))
    assert memory.top - top < 100 * 1280
    with pytest.raises(BoltError, match="memory"):
        memory.allocate(1 << 40)


STAGE = OWN + LOAD + "st.shared.u32 [%r3], %r4;" + OTHER


def test_a_missing_barrier_is_a_race() -> None:
    read = "ld.shared.u32 %r5, [%r7];" + STORE
    assert (fine(STAGE + "bar.sync 0;" + read)[:64] == X[:64] ^ 32).all()
    found("race, reads what another warp writes", STAGE + read)
    again = "bar.sync 0;" + read + "st.shared.u32 [%r3], %r0;"
    found("race, writes what another warp reads", STAGE + again)
    fine(STAGE + again.replace("st.shared", "bar.sync 0; st.shared"))
    fine(STAGE + again, checks=Checks(races=False))


def test_named_barriers_order_those_who_meet() -> None:
    read = "ld.shared.u32 %r5, [%r7];" + STORE
    pair = "shr.u32 %r8, %r0, 6; add.u32 %r8, %r8, 1;"
    assert (fine(STAGE + pair + "bar.sync %r8, 64;" + read, threads=128)[:128] == X[:128] ^ 32).all()
    found("deadlock", STAGE + "bar.sync 1, 256;" + read, threads=128)
    alone = "setp.lt.u32 %p1, %r0, 32; @%p1 bar.arrive 1, 64; @!%p1 bar.sync 1, 64; @%p1 bra L;" + read + "L:"
    got = fine(STAGE + alone)
    assert (got[32:64] == X[:32]).all()
    found("race", STAGE + alone.replace("@%p1 bra L;", ""))


def test_barriers_that_not_all_reach() -> None:
    found("barrier divergence", "setp.lt.u32 %p1, %r0, 5; @%p1 bra L; bar.sync 0; L:")
    fine("setp.lt.u32 %p1, %r0, 32; @%p1 bra L; bar.sync 0; L:")
    assert (
        fine("setp.lt.u32 %p1, %r0, 5; @%p1 ret; bar.sync 0; mov.u32 %r5, 1;" + STORE)[:8] == [0] * 5 + [1] * 3
    ).all()


def test_counting_barriers() -> None:
    got = fine("setp.lt.u32 %p1, %r0, 5; bar.red.popc.u32 %r5, 0, %p1;" + STORE, threads=96)
    assert (got[:96] == 5).all()


COPY = OWN + "add.s64 %a21, %a0, %a20; cp.async.ca.shared.global [%r3], [%a21], 4; cp.async.commit_group;"


def test_copies_must_be_waited_for() -> None:
    read = "bar.sync 0; xor.b32 %r6, %r2, 128; add.u32 %r7, %r1, %r6; ld.shared.u32 %r5, [%r7];" + STORE
    assert (fine(COPY + "cp.async.wait_group 0;" + read)[:64] == X[:64] ^ 32).all()
    found("before cp.async has been waited for", COPY + "cp.async.wait_group 1;" + read)
    found("before cp.async has been waited for", COPY + read)
    overwritten = "cp.async.wait_group 0;" + read + "cp.async.ca.shared.global [%r3], [%a21], 4;"
    found("race, writes what another warp reads", COPY + overwritten)
    fine(COPY + overwritten.replace(STORE + "cp", STORE + "bar.sync 0; cp"))


def test_a_copy_of_fewer_bytes_fills_with_zeros() -> None:
    body = OWN + "mov.u32 %r9, 0; setp.lt.u32 %p1, %r0, 3; selp.u32 %r9, 4, 0, %p1; add.s64 %a21, %a0, %a20;"
    body += "cp.async.ca.shared.global [%r3], [%a21], 4, %r9; cp.async.wait_all; ld.shared.u32 %r5, [%r3];" + STORE
    assert fine(body + "", threads=32)[:6].tolist() == [0, 1, 2, 0, 0, 0]


PIPE = OWN + """
add.u32 %r10, %r1, 1024; setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared.b64 [%r10], 32; bar.sync 0;
setp.ge.u32 %p2, %r0, 32; @%p2 bra READ;
""" + LOAD + """
st.shared.u32 [%r3], %r4; mbarrier.arrive.shared.b64 %a40, [%r10]; bra END;
READ: xor.b32 %r6, %r2, 128; add.u32 %r7, %r1, %r6;
WAIT: mbarrier.try_wait.parity.shared.b64 %p3, [%r10], 0; @!%p3 bra WAIT;
ld.shared.u32 %r5, [%r7];
""" + STORE + "END:"  # fmt: skip


def test_mbarriers() -> None:
    assert (fine(PIPE)[32:64] == X[:32]).all()
    wait = "WAIT: mbarrier.try_wait.parity.shared.b64 %p3, [%r10], 0; @!%p3 bra WAIT;"
    found("race|uninitialised", PIPE.replace(wait, ""))
    found("deadlock", PIPE.replace("[%r10], 32;", "[%r10], 33;"))
    found("more arrivals", PIPE.replace("[%r10], 32;", "[%r10], 31;"))
    found("no mbarrier", PIPE.replace("@%p1 mbarrier.init.shared.b64 [%r10], 32;", ""))


BULK = OWN + """
add.u32 %r10, %r1, 1024; setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared.b64 [%r10], 1; bar.sync 0; @!%p1 bra WAIT;
mbarrier.arrive.expect_tx.shared.b64 %a40, [%r10], 256;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%a0], 256, [%r10];
WAIT: mbarrier.try_wait.parity.shared.b64 %p3, [%r10], 0; @!%p3 bra WAIT;
ld.shared.u32 %r5, [%r3];
""" + STORE  # fmt: skip


def test_bulk_copies() -> None:
    assert (fine(BULK)[:64] == X[:64]).all()
    wait = "WAIT: mbarrier.try_wait.parity.shared.b64 %p3, [%r10], 0; @!%p3 bra WAIT;"
    found("without waiting", BULK.replace(wait, "WAIT: bar.sync 0;"))
    found("deadlock", BULK.replace("[%r10], 256;\n", "[%r10], 512;\n"))


def test_warps_that_diverged() -> None:
    half = "setp.lt.u32 %p1, %r0, 16; @%p1 bra L; shfl.sync.bfly.b32 %r5, %r0, 1, 31, 0xffffffff; L:"
    found("have not come", half)
    found("does not name", half.replace("0xffffffff", "0x0000ffff"))
    found("takes no part", half.replace("0xffffffff", "0xffff0000").replace("%r0, 1, 31", "%r0, 16, 31"), threads=32)
    product = "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2}, {%r3}, {%f1,%f2,%f3,%f4};"
    found("of a whole warp by some", "setp.lt.u32 %p1, %r0, 16; @%p1 bra L;" + product + "L:")


def test_a_kernel_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "STEPS", 1000)
    found("still runs", "L: add.u32 %r5, %r5, 1; bra L;")


def test_what_is_not_modelled_is_listed_at_once() -> None:
    with pytest.raises(UnsupportedOpError) as caught:
        Module(kernel("tex.1d.v4.f32.f32 {%f1}, [t, {%f1}];\nadd.u32 %r1, %r2, %r3;\nvadd.s32.s32.s32 %r1, %r2, %r3;"))
    assert [item.split()[2].split(".")[0] for item in caught.value.items] == ["tex", "vadd"]
    with pytest.raises(UnsupportedOpError, match="no kernel"):
        Module(HEAD)
    name = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
    with pytest.raises(UnsupportedOpError, match="multicast"):
        Module(kernel(f"{name} [%r1], [%a0, {{%r2, %r3}}], [%r4], %h1;"))


def test_a_lock_that_another_warp_holds_is_given_up() -> None:
    """Threads that spin let those run for whom they wait."""
    body = """
    setp.ge.u32 %p1, %r0, 32; @%p1 bra GIVE;
    SPIN: ld.volatile.global.u32 %r5, [%a1]; setp.eq.u32 %p2, %r5, 0; @%p2 bra SPIN;
    bra END;
    GIVE: mov.u32 %r6, 1; st.global.u32 [%a1], %r6;
    END:
    """
    assert fine(body)[0] == 1


def test_report_counts_conflicts_and_sectors() -> None:
    for stride, worst in ((4, 1), (8, 2), (64, 16)):
        report = SimulationReport()
        body = f"mov.u32 %r1, s; mad.lo.u32 %r3, %r0, {stride}, %r1; st.shared.u32 [%r3], %r0;"
        body += LOAD + "mov.u32 %r5, %r4;" + STORE
        run(body, X, np.zeros(256, np.uint32), 32, before=SHARED, report=report)
        assert report.total("st.shared").worst == worst
        assert report.total("st.shared").wavefronts == worst
        assert report.efficiency("ld.global") == 1
        assert report.executed("st") == 2
    report = SimulationReport()
    run("mul.wide.u32 %a20, %r0, 32;" + LOAD, X, X, 32, report=report)
    assert report.efficiency("ld.global") == 1 / 8
    assert "12 %" in str(report)


def test_modules_of_several_threads_share_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each launch asks for another machine, and most that are kept are dropped at once."""
    monkeypatch.setattr(programs, "_KEPT_BYTES", 1)
    wanted = X[:64] + 5

    def work(_: int) -> bool:
        body = LOAD + "add.u32 %r5, %r4, 5;" + STORE
        return all((run(body, X, X.copy(), threads)[:32] == wanted[:32]).all() for threads in (32, 64, 96, 128))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(12)))
    finally:
        sys.setswitchinterval(before)
