"""Words that are one PTX instruction each: its text and what its operands are.  Nothing of Numba is imported.

Operands are ``$0``, ``$1``, ... in the order results, arguments.  Their kinds are letters: ``h`` u16, ``r`` u32, ``l``
i64, ``f`` f32, ``d`` f64.  Several results are a tuple.  ``%n%`` in a text is an argument that must be a literal.
Source of texts and meanings: NVIDIA, PTX ISA 9.0.
"""

from __future__ import annotations

from bolt_numba.base.records import record


@record(frozen=True)
class Instruction:
    """One instruction.

    is_pure: equal arguments give equal results, so calls may be shared, moved and left out.
    touches_memory: loads and stores of the kernel stay on their side of it.
    literals: names of the last arguments, which are written into the text.
    """

    text: str
    results: str = ""
    arguments: str = ""
    is_pure: bool = False
    touches_memory: bool = False
    literals: tuple[str, ...] = ()


def _pure(text: str, results: str, arguments: str) -> Instruction:
    return Instruction(text, results, arguments, is_pure=True)


def _effect(text: str, results: str = "", arguments: str = "", *literals: str) -> Instruction:
    return Instruction(text, results, arguments, touches_memory=True, literals=literals)


_FOUR = "{$0,$1,$2,$3}"

# ----------------------------------------------------------------------------------------------------------- arithmetic
_ARITHMETIC = {
    # approximations of one instruction; each denormal operand or result is zero (ftz)
    "ex2": _pure("ex2.approx.ftz.f32 $0, $1;", "f", "f"),
    "lg2": _pure("lg2.approx.ftz.f32 $0, $1;", "f", "f"),
    "rcp": _pure("rcp.approx.ftz.f32 $0, $1;", "f", "f"),
    "rsqrt_approx": _pure("rsqrt.approx.ftz.f32 $0, $1;", "f", "f"),
    "sqrt_approx": _pure("sqrt.approx.ftz.f32 $0, $1;", "f", "f"),
    "tanh_approx": _pure("tanh.approx.f32 $0, $1;", "f", "f"),
    # correctly rounded
    "rcp_exact": _pure("rcp.rn.f32 $0, $1;", "f", "f"),
    "divide_exact": _pure("div.rn.f32 $0, $1, $2;", "f", "ff"),
    "sqrt_exact": _pure("sqrt.rn.f32 $0, $1;", "f", "f"),
    "fma": _pure("fma.rn.f32 $0, $1, $2, $3;", "f", "fff"),
    "add_apart": _pure("add.rn.f32 $0, $1, $2;", "f", "ff"),  # is never made one with a product
    "multiply_apart": _pure("mul.rn.f32 $0, $1, $2;", "f", "ff"),
    # NaN where either is (maximum), or the other one where one is NaN (max_f32)
    "maximum": _pure("max.NaN.f32 $0, $1, $2;", "f", "ff"),
    "minimum": _pure("min.NaN.f32 $0, $1, $2;", "f", "ff"),
    "max_f32": _pure("max.f32 $0, $1, $2;", "f", "ff"),
    "min_f32": _pure("min.f32 $0, $1, $2;", "f", "ff"),
    # to integers, to nearest even; beyond the range the end of the range, NaN is 0
    "round_i32": _pure("cvt.rni.s32.f32 $0, $1;", "r", "f"),
    # to whole floats, rint to the nearest even
    "rint_f32": _pure("cvt.rni.f32.f32 $0, $1;", "f", "f"),
    "floor_f32": _pure("cvt.rmi.f32.f32 $0, $1;", "f", "f"),
    "ceil_f32": _pure("cvt.rpi.f32.f32 $0, $1;", "f", "f"),
    "rint_f64": _pure("cvt.rni.f64.f64 $0, $1;", "d", "d"),
    "floor_f64": _pure("cvt.rmi.f64.f64 $0, $1;", "d", "d"),
    "ceil_f64": _pure("cvt.rpi.f64.f64 $0, $1;", "d", "d"),
    "saturate_s8": _pure("cvt.sat.s8.s32 $0, $1;", "r", "r"),
    "saturate_u8": _pure("cvt.sat.u8.s32 $0, $1;", "r", "r"),
    # bits
    "f32_bits": _pure("mov.b32 $0, $1;", "r", "f"),
    "bits_f32": _pure("mov.b32 $0, $1;", "f", "r"),
    "f64_bits": _pure("mov.b64 $0, $1;", "l", "d"),
    "prmt": _pure("prmt.b32 $0, $1, $2, $3;", "r", "rrr"),
    "lop3_xor_and": _pure("lop3.b32 $0, $1, $2, $3, 0x60;", "r", "rrr"),
    "mad_wide_i32": _pure("mad.wide.s32 $0, $1, $2, $3;", "l", "rrl"),  # an i64 address plus a product of two i32
    "mulhi_u32": _pure("mul.hi.u32 $0, $1, $2;", "r", "rr"),
    "shift_right_u32": _pure("shr.u32 $0, $1, $2;", "r", "rr"),  # of Numba's >> the result is 64 bits wide
    # sums of four products of bytes: a, b, sum
    "dp4a": _pure("dp4a.s32.s32 $0, $1, $2, $3;", "r", "rrr"),
    "dp4a_us": _pure("dp4a.u32.s32 $0, $1, $2, $3;", "r", "rrr"),
    "dp4a_uu": _pure("dp4a.u32.u32 $0, $1, $2, $3;", "r", "rrr"),
}

# --------------------------------------------------------------------------------------------------------------- halves
_HALVES = {
    # pairs in a u32; cvt_f16x2(high, low)
    "cvt_f16x2": _pure("cvt.rn.f16x2.f32 $0, $1, $2;", "r", "ff"),
    "cvt_bf16x2": _pure("cvt.rn.bf16x2.f32 $0, $1, $2;", "r", "ff"),
    "unpack_f16x2": _pure("{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }", "ff", "r"),
    "unpack_bf16x2": _pure(
        "{ .reg .b32 l, h; shl.b32 l, $2, 16; and.b32 h, $2, 0xffff0000; mov.b32 $0, l; mov.b32 $1, h; }", "ff", "r"
    ),
    "cvt_tf32": _pure("cvt.rna.tf32.f32 $0, $1;", "r", "f"),
    "hfma2": _pure("fma.rn.f16x2 $0, $1, $2, $3;", "r", "rrr"),
    "hadd2": _pure("add.rn.f16x2 $0, $1, $2;", "r", "rr"),
    "hmul2": _pure("mul.rn.f16x2 $0, $1, $2;", "r", "rr"),
    "hmax2": _pure("max.f16x2 $0, $1, $2;", "r", "rr"),
    "hmin2": _pure("min.f16x2 $0, $1, $2;", "r", "rr"),
}

# --------------------------------------------------------------------------------------------------------- async copies
_COPIES = {
    # shared address, global address; zfill: bytes that are read, the rest of the 16 is zero
    "cp_async4": _effect("cp.async.ca.shared.global [$0], [$1], 4;", "", "rl"),
    "cp_async4_zfill": _effect("cp.async.ca.shared.global [$0], [$1], 4, $2;", "", "rlr"),
    "cp_async8": _effect("cp.async.ca.shared.global [$0], [$1], 8;", "", "rl"),
    "cp_async8_zfill": _effect("cp.async.ca.shared.global [$0], [$1], 8, $2;", "", "rlr"),
    "cp_async16": _effect("cp.async.cg.shared.global [$0], [$1], 16;", "", "rl"),
    "cp_async16_zfill": _effect("cp.async.cg.shared.global [$0], [$1], 16, $2;", "", "rlr"),
    "cp_async_commit": _effect("cp.async.commit_group;"),
    "cp_async_wait": _effect("cp.async.wait_group %n%;", "", "", "n"),
}

# --------------------------------------------------------------------------------------------------------- tensor cores
_LDMATRIX = "ldmatrix.sync.aligned.m8n8"
_MATRICES = {
    f"ldmatrix_x{n}{suffix}": _effect(
        f"{_LDMATRIX}.x{n}{'.trans' if suffix else ''}.shared.b16 {{{','.join(f'${i}' for i in range(n))}}}, [${n}];",
        "r" * n, "r",
    )
    for n in (1, 2, 4)
    for suffix in ("", "_trans")
}  # fmt: skip

MMA = {
    "f16": ("m16n8k16.row.col.f32.f16.f16.f32", "f"),
    "bf16": ("m16n8k16.row.col.f32.bf16.bf16.f32", "f"),
    "tf32": ("m16n8k8.row.col.f32.tf32.tf32.f32", "f"),
    "s8": ("m16n8k32.row.col.s32.s8.s8.s32", "r"),
    "u8s8": ("m16n8k32.row.col.s32.u8.s8.s32", "r"),
    "s8u8": ("m16n8k32.row.col.s32.s8.u8.s32", "r"),
    "u8u8": ("m16n8k32.row.col.s32.u8.u8.s32", "r"),
    "b1": ("m16n8k256.row.col.s32.b1.b1.s32.and.popc", "r"),
    "b1_xor": ("m16n8k256.row.col.s32.b1.b1.s32.xor.popc", "r"),
}
"""By kind of the operands: the instruction for 16 rows and 8 columns, and what a sum is."""


def mma(kind: str) -> Instruction:
    """``c0..c3 = mma(a0..a3, b0, b1, c0..c3)`` of a warp.  On Hopper "b1_xor" is emulated: use "b1" there."""
    shape, sums = MMA[kind]
    text = f"mma.sync.aligned.{shape} {_FOUR}, {{$4,$5,$6,$7}}, {{$8,$9}}, {{$10,$11,$12,$13}};"
    return Instruction(text, sums * 4, "rrrrrr" + sums * 4)


_TENSOR = {
    "mma_f16_f32": mma("f16"),
    "mma_bf16_f32": mma("bf16"),
    "mma_f16_f16": Instruction(
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {$0,$1}, {$2,$3,$4,$5}, {$6,$7}, {$8,$9};", "rr", "rrrrrrrr"
    ),
    "mma_tf32": mma("tf32"),
    "mma_s8": mma("s8"),
    "mma_u8s8": mma("u8s8"),
    "mma_b1_and": mma("b1"),
    "mma_b1_xor": mma("b1_xor"),
}

# --------------------------------------------------------------------------------------------------------------- Hopper
_HOPPER = {
    "wgmma_fence": _effect("wgmma.fence.sync.aligned;"),
    "wgmma_commit": _effect("wgmma.commit_group.sync.aligned;"),
    "wgmma_wait": _effect("wgmma.wait_group.sync.aligned %n%;", "", "", "n"),
    "fence_proxy_async": _effect("fence.proxy.async.shared::cta;"),
    # barriers in shared memory: address, then count, bytes or parity
    "mbar_init": _effect("mbarrier.init.shared::cta.b64 [$0], $1;", "", "rr"),
    "fence_mbar_init": _effect("fence.mbarrier_init.release.cluster;"),
    "mbar_arrive": _effect("mbarrier.arrive.release.cta.shared::cta.b64 _, [$0];", "", "r"),
    "mbar_expect_tx": _effect("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [$0], $1;", "", "rr"),
    "mbar_wait": _effect(
        "{ .reg .pred P1; LAB_WAIT: mbarrier.try_wait.parity.shared::cta.b64 P1, [$0], $1; "
        "@P1 bra DONE; bra LAB_WAIT; DONE: }", "", "rr",
    ),
    # shared address, tensor map, barrier, coordinates from the fastest
    "tma_load_2d": _effect(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[$0], [$1, {$3, $4}], [$2];", "", "rlrrr",
    ),
    "tma_load_3d": _effect(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[$0], [$1, {$3, $4, $5}], [$2];", "", "rlrrrr",
    ),
    # a tensor map that the host has written to global memory is read behind it
    "fence_tensor_map": _effect("fence.proxy.tensormap::generic.acquire.sys [$0], 128;", "", "l"),
    "tma_store_2d": _effect(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [$0, {$2, $3}], [$1];", "", "lrrr"
    ),
    "tma_commit": _effect("cp.async.bulk.commit_group;"),
    "tma_wait_read": _effect("cp.async.bulk.wait_group.read %n%;", "", "", "n"),
    "tma_prefetch": _effect("prefetch.tensormap [$0];", "", "l"),
    "setmaxnreg_inc": Instruction("setmaxnreg.inc.sync.aligned.u32 %n%;", literals=("n",)),
    "setmaxnreg_dec": Instruction("setmaxnreg.dec.sync.aligned.u32 %n%;", literals=("n",)),
    "named_barrier": _effect("bar.sync $0, $1;", "", "rr"),
    "named_arrive": _effect("bar.arrive $0, $1;", "", "rr"),
}  # fmt: skip

# ------------------------------------------------------------------------------------------------------ atomics, fences
_ATOMICS = {
    # global addresses; the result is what was there
    "atomic_add_f32": _effect("atom.global.add.f32 $0, [$1], $2;", "f", "lf"),
    "atomic_add_i32": _effect("atom.global.add.u32 $0, [$1], $2;", "r", "lr"),
    "atomic_add_i64": _effect("atom.global.add.u64 $0, [$1], $2;", "l", "ll"),
    "atomic_max_i32": _effect("atom.global.max.s32 $0, [$1], $2;", "r", "lr"),
    "atomic_max_i64": _effect("atom.global.max.s64 $0, [$1], $2;", "l", "ll"),
    "atomic_exchange_i32": _effect("atom.global.exch.b32 $0, [$1], $2;", "r", "lr"),
    "fence": _effect("membar.gl;"),
}

INSTRUCTIONS: dict[str, Instruction] = {
    **_ARITHMETIC, **_HALVES, **_COPIES, **_MATRICES, **_TENSOR, **_HOPPER, **_ATOMICS,
}  # fmt: skip
