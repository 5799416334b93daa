"""Boxes of tensors that the hardware copies, in both directions, with zeros outside and any swizzle."""

from __future__ import annotations

import numpy as np
import pytest

from bolt_numba_simulator.ptx import GlobalMemory, Module, SimulationError, TensorMap
from bolt_numba_simulator.ptx.state.memory import BASE
from tests.ptx.kit import kernel, put

SHARED = ".shared .align 1024 .b8 s[2048];\n.shared .align 8 .b8 bar[8];\n"
BODY = """
mov.u32 %r1, s; mov.u32 %r2, bar; setp.eq.u32 %p1, %r0, 0; mov.u32 %r4, 8; mov.u32 %r5, 6; mov.u32 %r6, 1;
@%p1 mbarrier.init.shared.b64 [%r2], 1; bar.sync 0; @!%p1 bra WAIT;
mbarrier.arrive.expect_tx.shared.b64 %a40, [%r2], 1024;
cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%a0, {%r4, %r5, %r6}], [%r2];
WAIT: mbarrier.try_wait.parity.shared.b64 %p3, [%r2], 0; @!%p3 bra WAIT;
shl.b32 %r7, %r0, 2; add.u32 %r7, %r7, %r1; add.s64 %a22, %a1, %a20;
ld.shared.u32 %r8, [%r7]; st.global.u32 [%a22], %r8;
bar.sync 0; @!%p1 bra END;
cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%a2, {%r4, %r5, %r6}], [%r1];
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
END:
"""
PARAMS = (".u64 map", ".u64 y", ".u64 back")


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_boxes(swizzle: int) -> None:
    x = np.arange(1, 1 + 3 * 10 * 48, dtype=np.float16).reshape(3, 10, 48)
    box = (16, 8, 4) if swizzle == 32 else (32, 4, 4) if swizzle == 64 else (64, 4, 2)
    memory = GlobalMemory()
    back = np.zeros_like(x)
    addresses = [put(memory, array) for array in (x, back)]
    maps = [TensorMap(address, 2, (48, 10, 3), (96, 960), box, swizzle) for address in addresses]
    first, second = (put(memory, made.encoded()) for made in maps)
    y = put(memory, np.zeros(256, np.uint32))
    Module(kernel(BODY, PARAMS, SHARED)).launch(memory, (1,), 256, [first, y, second])
    got = np.zeros(512, np.float16)
    memory.read(y, got)
    whole = np.zeros((3 + 8, 10 + 16, 48 + 128), np.float16)
    whole[:3, :10, :48] = x
    wanted = whole[1 : 1 + box[2], 6 : 6 + box[1], 8 : 8 + box[0]]
    place = np.arange(64)
    if swizzle:  # pieces of 16 bytes change places by the row of 128 bytes that they are in
        place = place ^ (place >> 3 & (swizzle // 16 - 1))
    np.testing.assert_array_equal(got.reshape(64, 8)[place], wanted.reshape(64, 8))
    memory.read(addresses[1], back)
    inside = np.zeros_like(x)
    part = np.s_[1 : 1 + box[2], 6 : 6 + box[1], 8 : 8 + box[0]]
    inside[part] = x[part]
    np.testing.assert_array_equal(back, inside)


def test_an_address_that_is_no_map() -> None:
    memory = GlobalMemory()
    x = put(memory, np.zeros(256, np.uint32))
    with pytest.raises(SimulationError, match="no tensor map"):
        Module(kernel(BODY, PARAMS, SHARED)).launch(memory, (1,), 256, [x, x, x])


@pytest.mark.parametrize("rank", [1, 2, 3, 5])
def test_a_map_is_in_its_bytes_alone(rank: int) -> None:
    """So nothing is kept beside them, however many maps are made."""
    dims, strides = tuple(range(2**32 - rank, 2**32)), tuple(2**40 - 16 * i for i in range(1, rank))
    made = TensorMap(BASE + 256, 4, dims, strides, (256,) * rank, 128)
    found = made.encoded()
    assert found.nbytes == 128
    assert TensorMap.decoded(found.tobytes()) == made
    assert TensorMap.decoded(bytes(128)) is None
