"""One kernel of each kind that a module of CUDA kernels makes, for the table of `tests.cuda.resources`.

A function gives those of a module ``m``: a list, or a dict by names of its own.  Modules that all devices share make
theirs ``on`` the parts of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from bolt_numba.base.types import BF16, F16, F32, F64, I64, U8, U64
from bolt_numba.base.types import F32 as F32_TYPE
from bolt_numba.base.types import I64 as I64_TYPE
from bolt_numba.base.types import I64 as LONG
from bolt_numba.kernels.common.places import along_axis, along_rows, columns_of, tuples
from bolt_numba.kernels.common.tables import Lookup
from bolt_numba.kernels.cuda.attention.combine import combine_parts
from bolt_numba.kernels.cuda.attention.flash import ALL_ROWS, ONE_ROW, FlashForm, flash_attention
from bolt_numba.kernels.cuda.attention.tiles import attention_tiles
from bolt_numba.kernels.cuda.convolution.direct import DIRECT, Direct
from bolt_numba.kernels.cuda.convolution.tail import float_ending
from bolt_numba.kernels.cuda.convolution.tensor import WARP_TILES, Lines, conv_lines
from bolt_numba.kernels.cuda.declare import WIDE_BLOCK, CudaKernel
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.elementwise.epilogue import activation, no_activation
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.products.copies import Order
from bolt_numba.kernels.cuda.products.prepare_bytes import numbers_of_columns
from bolt_numba.kernels.cuda.products.tail import TailForm
from bolt_numba.kernels.cuda.products.tail_bytes import FUSED, ByteForm
from bolt_numba.kernels.cuda.products.tensor import TENSOR_TILES, tensor
from bolt_numba.kernels.cuda.products.wgmma import GROUP_TILES, wgmma_product
from bolt_numba.kernels.cuda.recurrent.gru import gru_after_walk, gru_walk
from bolt_numba.kernels.cuda.recurrent.inputs import products_kernel
from bolt_numba.kernels.cuda.recurrent.walk import lstm_walk, rnn_walk
from bolt_numba.kernels.cuda.reductions.lines import LONGEST_ROW, held
from bolt_numba.ops import pointwise as ops
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.arrays.reduce import ReduceL2, ReduceMax, ReduceSum
from bolt_numba.ops.pointwise.chain import Chain

Samples: TypeAlias = "list[CudaKernel] | dict[str, CudaKernel]"
SAMPLES: dict[str, Callable[..., Samples]] = {}


def of(module: str) -> Callable[[Callable[..., Samples]], Callable[..., Samples]]:
    """Register the samples of a module below `kernels.cuda`, or of one of `kernels` that all devices share."""

    def register(function: Callable[..., Samples]) -> Callable[..., Samples]:
        SAMPLES[module] = function
        return function

    return register


@of("common.cache")
def common_cache(m: Any, on: Any) -> Samples:
    return [on.kernel(m.cache_table)]


@of("common.gather")
def common_gather(m: Any, on: Any) -> Samples:
    forms = (along_rows(8), 16), (along_axis(8, 3, False), 4), (tuples(8, 2), 4)
    made = [on.kernel(m.gather_places(form), run=run) for form, run in forms]
    return [
        *made,
        on.kernel(m.reverse_rows, 8, True, run=16),
        *(on.kernel(m.set_hot, d, run=4) for d in ("f32", "i64")),
    ]


@of("common.grams")
def common_grams(m: Any, on: Any) -> Samples:
    return [on.kernel(m.count_grams, "i64", mode) for mode in range(len(m.MODES))]


@of("common.held")
def common_held(m: Any, on: Any) -> Samples:
    return [on.kernel(m.hold, 4)]


@of("common.labels")
def common_labels(m: Any, on: Any) -> Samples:
    return [
        on.kernel(m.find_rows, dtype, strict, run=run) for dtype, strict, run in (("f32", False, 4), ("i64", True, 16))
    ]


@of("common.moves")
def common_moves(m: Any, on: Any) -> Samples:
    return [on.kernel(m.triangle, True, run=4)]


@of("common.rotary")
def common_rotary(m: Any, on: Any) -> Samples:
    return [on.kernel(m.rotate, "f32", False, run=4), on.kernel(m.rotate, "f16", True, run=2)]


@of("common.scatter")
def common_scatter(m: Any, on: Any) -> Samples:
    form = tuples(8, 2)
    kinds = [on.kernel(m.clear(form)), on.kernel(m.claim(form)), on.kernel(m.write_claimed(form), run=16)]
    kinds += [on.kernel(m.add_all(form), "f32", run=4), on.kernel(m.reduce_in_order(columns_of(form)), "f16", "max")]
    return [*kinds, *(on.kernel(m.scatter_rows, 8, circular, run=16) for circular in (False, True))]


@of("attention.attention")
def attention_attention(m: Any) -> Samples:
    forms = [
        FlashForm("f16", 64, 2, 4), FlashForm("f16", 64, 2, 4, ONE_ROW), FlashForm("bf16", 128, 2, 4, ALL_ROWS),
        FlashForm("f16", 128, 1, 1, parts=True, capped=True, grouped=True), FlashForm("f16", 128, 2, 4),
        FlashForm("f16", 128, 2, 4, grouped=True), FlashForm("f16", 128, 2, 4, ONE_ROW, grouped=True),
    ]  # fmt: skip
    plain = attention_tiles("f32", 1), attention_tiles("f32", 4), attention_tiles("f32", 4, again=True)
    return [*plain, *map(flash_attention, forms), combine_parts("f16")]


@of("attention.cache")
def attention_cache(m: Any) -> Samples:
    return [m.append_kernel(4), m.append_kernel(0)]


@of("binary.pack")
def binary_pack(m: Any) -> Samples:
    return {"rows": m.pack_rows("sign"), "planes": PARTS.kernel(m.pack_planes, "sign")}


@of("binary.products")
def binary_products(m: Any) -> Samples:
    return {
        "values": PARTS.kernel(m.count_bits, m.BitForm(False, 1, False, activation(None))),
        "bits": PARTS.kernel(m.count_bits, m.BitForm(False, 2, True, no_activation)),
        "0 and 1": PARTS.kernel(m.count_bits, m.BitForm(True, 1, False, activation(None))),
    }


@of("convolution.bytes")
def convolution_bytes(m: Any) -> Samples:
    ending = m.byte_ending("u8", "u8", False, activation(None))
    return {
        "u8": conv_lines(WARP_TILES[0], Lines("u8s8", 1, ending, False, False), 4, 1),
        "i32": conv_lines(WARP_TILES[2], Lines("s8", 1, m.INTEGERS, False, False), 4, 4),
        "direct": PARTS.kernel(
            DIRECT[True], Direct("u8", "i16", m.byte_ending("u8", "", False, None), True, False, 4, 4)
        ),
    }


@of("convolution.depthwise")
def convolution_depthwise(m: Any) -> Samples:
    plain = activation(None)
    made = {
        f"{dtype} {slide.pixels} x {slide.columns} / {slide.stride}": m.depthwise_kernel(dtype, vector, slide, plain)
        for dtype, vector in (("f32", 4), ("f16", 8))
        for slide in (m.Sliding(4, 3, 1), m.Sliding(2, 3, 2), m.Sliding(1))
    }
    return made | {"bf16": m.depthwise_kernel("bf16", 8, m.Sliding(4, 3, 1), plain)}


@of("convolution.direct")
def convolution_direct(m: Any) -> Samples:
    ends = {dtype: float_ending(dtype, activation(None)) for dtype in ("f32", "f16")}
    return {
        f"{dtype} {t}": PARTS.kernel(
            m.DIRECT[True], m.Direct(dtype, dtype, ending, True, t, lang.SIZES[dtype], lang.SIZES[dtype])
        )
        for dtype, ending in ends.items() for t in (False, True)
    }  # fmt: skip


@of("convolution.simt")
def convolution_simt(m: Any) -> Samples:
    plain = activation(None)
    made = {f"{t.m} x {t.n}": m.conv_f32(t, False, False, plain) for t in m.PLAIN_TILES}
    return made | {"many taps": m.conv_f32(m.PLAIN_TILES[0], True, True, plain)}


@of("convolution.tensor")
def convolution_tensor(m: Any) -> Samples:
    plain = activation(None)
    made = {f"f16 {t.m} x {t.n}": m.halves(t, "f16", False, False, plain) for t in m.WARP_TILES}
    return made | {
        "many taps": m.halves(m.WARP_TILES[0], "bf16", True, True, plain),
        "channels": m.widened_channels("f16"),
    }


@of("elementwise.chains")
def elementwise_chains(m: Any) -> Samples:
    """One of each form: vectors, rows that do not divide, halves, functions, codes, integers."""
    add, conversions = Chain(((ops.Add(), (0, 1)),), (2,)), ((DequantizeLinear(), (0, 1)), (QuantizeLinear(), (2, 1)))
    functions = (ops.Gelu(), ops.Sin(), ops.Mish(), ops.Swish())
    found = {
        "add f32": m.chain_kernel(add, (F32_TYPE, F32_TYPE), (), 0, "vv", 4),
        "add rows": m.chain_kernel(add, (F32_TYPE, F32_TYPE), (), 2, "vs", 1),
        "add f16": m.chain_kernel(add, (F16, F16), (), 1, "vv", 8),
        "add i64": m.chain_kernel(add, (I64_TYPE, I64_TYPE), (), 0, "vn", 2),
        "codes": m.chain_kernel(Chain(conversions, (3,)), (U8, F32_TYPE), (), 0, "vn", 8),
    }
    for op in functions:
        found[op.name] = m.chain_kernel(Chain(((op, (0,)),), (1,)), (F32_TYPE,), (), 0, "v", 4)
    return found


@of("elementwise.tables")
def elementwise_tables(m: Any) -> Samples:
    """Bytes, and floats to bytes."""
    odd = Lookup("i32", "(({x} >> 16) & 65535) | (({x} & 65535) != 0)", 1)
    return [m.lookup(Lookup("u8", "i64({x})", 1)), m.lookup(odd)]


@of("movement.moves")
def movement_moves(m: Any) -> Samples:
    turned = [m.copy_turned(1, 4, 1), m.copy_turned(2, 2, 1), m.copy_turned(4, 1, 1), m.copy_turned(8, 1, 1)]
    strided = [PARTS.kernel(m.copy_strided(unit, rank)) for unit, rank in ((16, 3), (4, 3), (1, 4))]
    return [m.copy_block, *strided, *turned]


@of("movement.table_gather")
def movement_table_gather(m: Any) -> Samples:
    return [PARTS.kernel(m.take(16, 2)), PARTS.kernel(m.take(4, 2))]


@of("products.combine")
def products_combine(m: Any) -> Samples:
    return {"f32": m.combine(TailForm())}


@of("products.few")
def products_few(m: Any) -> Samples:
    plain, halves = TailForm(), TailForm("f16", "f16", "f16")
    return {
        "1 f16 by columns": m.few_columns(1, "f16", True, halves),
        "4 f32 by columns": m.few_columns(4, "f32", True, plain),
        "4 f16 by terms": m.few_terms(4, "f16", True, halves),
    }  # fmt: skip


@of("products.matmul_bits")
def products_matmul_bits(m: Any) -> Samples:
    return {"4 bits": PARTS.kernel(m.floats_of_bits, 4, "f16")}


@of("products.matmul_integer")
def products_matmul_integer(m: Any) -> Samples:
    order, form = Order("k", True), ByteForm("u8", "u8", FUSED, False, True)
    columns = numbers_of_columns("u8", "i8", "u8", "i32", "u8")
    return {"128x256": tensor(TENSOR_TILES[0], "s8", order, order, form), "columns": columns}


@of("products.matmul_wgmma")
def products_matmul_wgmma(m: Any) -> Samples:
    """A kernel of bytes, which has its table."""
    plain = Order("k", True)
    return {"u8 and s8": wgmma_product(GROUP_TILES[0], "u8s8", plain, plain, ByteForm("u8", "u8", FUSED, False, True))}


@of("products.matmul_wide")
def products_matmul_wide(m: Any) -> Samples:
    return {"i64": PARTS.kernel(m.product_wide, "i64", "k", "m")}


@of("products.simt")
def products_simt(m: Any) -> Samples:
    return {f"{t.m}x{t.n}": m.simt(t, Order("k", False), Order("m", True), TailForm()) for t in m.SIMT_TILES}


@of("products.tensor")
def products_tensor(m: Any) -> Samples:
    plain, turned, halves = Order("k", True), Order("m", True), TailForm("f16", "f16", "f16")
    found = {f"f16 {t.m}x{t.n}": m.tensor(t, "f16", plain, turned, halves) for t in m.TENSOR_TILES}
    bf16 = m.tensor(m.TENSOR_TILES[0], "bf16", turned, plain, TailForm("bf16", "bf16", "bf16"))
    return {**found, "bf16 turned": bf16}


@of("products.wgmma")
def products_wgmma(m: Any) -> Samples:
    plain, turned, halves = Order("k", True), Order("m", True), TailForm("f16", "f16", "f16")
    wide, tall, middle, low, _ = m.GROUP_TILES
    found = {f"f16 {t.m}x{t.n}": m.wgmma_product(t, "f16", plain, turned, halves) for t in (wide, tall, low)}
    bf16 = m.wgmma_product(middle, "bf16", turned, plain, TailForm("bf16", "bf16", "bf16"))
    return {**found, "bf16 turned": bf16, "tf32": m.wgmma_product(wide, "tf32", plain, plain, TailForm())}


@of("recurrent.layers")
def recurrent_layers(m: Any) -> Samples:
    lstm, gru = ("sigmoid", "tanh", "tanh"), ("sigmoid", "tanh")
    return [
        lstm_walk(8, lstm, "f32", 4), lstm_walk(1, lstm, "f16", 4), lstm_walk(8, lstm, "f16", 1),
        rnn_walk(4, ("tanh",), "bf16", 4), gru_walk(8, gru, "f32", 4), gru_after_walk(8, gru, "f16", 4),
        products_kernel("f32"), products_kernel("f16"),
    ]  # fmt: skip


@of("reductions.arg")
def reductions_arg(m: Any) -> Samples:
    """Warps, blocks and columns."""
    return [m.arg_rows(F32, False, 32), m.arg_rows(F64, True, WIDE_BLOCK), PARTS.kernel(m.arg_columns, U64, True)]


@of("reductions.channels")
def reductions_channels(m: Any) -> Samples:
    """Of f32 and of halves."""
    return [m.group_statistics("f32", "f32"), m.group_statistics("f16", "f16"), PARTS.kernel(m.neighbour_norm, "f32")]


@of("reductions.fold")
def reductions_fold(m: Any) -> Samples:
    """Warps, blocks and columns; floats, halves, integers."""
    add, most = m.FOLDS[ReduceSum], m._WHOLE[ReduceMax]
    forms = ((add, F32, F32), (add, F16, F16), (most, I64, I64), (m.FOLDS[ReduceL2], BF16, BF16))
    rows = [m.fold_rows(*form, lanes) for form in forms for lanes in (32, WIDE_BLOCK)]
    return [*rows, *(PARTS.kernel(m.fold_columns, *form) for form in forms)]


@of("reductions.norm")
def reductions_norm(m: Any) -> Samples:
    """Rows of each length."""
    lengths = (("f32", 64), ("f16", 512), ("f32", 2048), ("f32", LONGEST_ROW), ("f16", LONGEST_ROW))
    rows = [
        m.normalise_rows(centred, kind, kind, held(n, m.ITEMS[kind]))
        for kind, n in lengths
        for centred in (True, False)
    ]
    return [*rows, m.normalise_long_rows(True, "f32", "f32")]


@of("reductions.ranges")
def reductions_ranges(m: Any) -> Samples:
    """The one that is not generated."""
    return [m.scale_of_range]


@of("reductions.running")
def reductions_running(m: Any) -> Samples:
    """Rows and columns of floats and integers."""
    return [m.running_rows(F32, True), m.running_rows(LONG, True), PARTS.kernel(m.running_columns, F32, False)]


@of("reductions.softmax")
def reductions_softmax(m: Any) -> Samples:
    """Rows of each length, and columns."""
    lengths = (("f32", 64), ("f16", 512), ("f32", 2048), ("f32", LONGEST_ROW), ("f16", LONGEST_ROW))
    rows = [m.softmax_rows(False, kind, held(n, m.ITEMS[kind])) for kind, n in lengths]
    long = [m.softmax_long_rows(True, kind, held(2 * LONGEST_ROW, m.ITEMS[kind])) for kind in ("f32", "f16")]
    return [*rows, *long, PARTS.kernel(m.softmax_columns, False, "f32")]


@of("reductions.sums")
def reductions_sums(m: Any) -> Samples:
    """Warps, blocks and columns."""
    made = [
        m.log_sum_exp_rows("f32", "f32", 32),
        m.log_sum_exp_rows("f16", "f32", WIDE_BLOCK),
        PARTS.kernel(m.log_sum_exp_columns, "f32", "f32"),
    ]
    return [*made, m.lp_rows(2, "f32", 32), PARTS.kernel(m.lp_columns, 1, "bf16")]


@of("spatial.grid_sample")
def spatial_grid_sample(m: Any) -> Samples:
    plane = [PARTS.kernel(m.sample_points, "f32", "f32", 2, taps, 0, False) for taps in (1, 2, 4)]
    return [*plane, PARTS.kernel(m.sample_points, "f16", "f32", 3, 2, 1, True)]


@of("spatial.pool")
def spatial_pool(m: Any) -> Samples:
    wide = [(kind, dtype, m.WIDTH // dtype.itemsize, False, 0) for kind in ("max", "mean") for dtype in (F32, F16)]
    plane = [PARTS.kernel(m.pool(2, False), *settings) for settings in (*wide, ("lp", F32, 4, False, 2))]
    return [*plane, PARTS.kernel(m.pool(3, True), "max", F32, 1, True, 0)]


@of("spatial.resize")
def spatial_resize(m: Any) -> Samples:
    forms = ("uppu", "f32", "f32", 4, 2, 2), ("uppu", "f16", "f16", 8, 2, 2), ("upp", "f32", "f32", 1, 4, 4)
    return [PARTS.kernel(m.blend(form), *settings) for form, *settings in (*forms, ("upu", "f32", "f16", 4, 0))]


@of("spatial.roi_align")
def spatial_roi_align(m: Any) -> Samples:
    return [PARTS.kernel(m.align_regions, "f32", 8, False, True), PARTS.kernel(m.align_regions, "f16", 8, True, False)]


@of("spatial.topk")
def spatial_topk(m: Any) -> Samples:
    sorts = m.sort_chunks("f32", True, m.CHUNK, False), m.sort_chunks("f16", False, m.LEAST_CHUNK, True)
    return [*sorts, PARTS.kernel(m.merge_runs, 4, True)]
