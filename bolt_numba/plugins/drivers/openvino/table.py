"""What OpenVINO gets: operators, their dtypes, and what it does not do with them although it takes them as ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, F32, I8, I32, I64, U8
from bolt_numba.ir.graph import Node
from bolt_numba.ops.layers.resize import EXACT
from bolt_numba.plugins.drivers.table import NotThereError, Site, Table, want_dtypes

NUMBER = (F32, I32)
DATA = (F32, I32, BOOL, U8, I8)
BYTES = (U8, I8)
TABLE = Table("")
builds = TABLE.builds
COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn")


def want(node: Node, wide: bool) -> None:
    """Refuse what OpenVINO lacks or does otherwise, by NotThereError.  wide: it may compute 64 bits in 32."""
    row = TABLE.of(node)
    want_dtypes(node, row, (I64,) if wide and I32 in row.dtypes else (), ", which OpenVINO would compute in 32 bits")
    row.build(Site(node), node.op)


def _anything(s: Site, op: Any) -> None:
    """Nothing is refused."""


for _names, _dtypes, _results in (
    ("Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Div Elu Erf Exp Floor Gelu HardSigmoid HardSwish LeakyRelu"
     " Log Mish Mod PRelu Pow Reciprocal Round Selu Shrink Sigmoid Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh"
     " ThresholdedRelu BatchNormalization MatMul", (F32,), (F32,)),
    ("Abs Neg Relu Sign Add Sub Mul Max Min Clip", NUMBER, NUMBER),
    ("Less LessOrEqual Greater GreaterOrEqual", NUMBER, (BOOL,)),
    ("Equal", DATA, (BOOL,)),
    ("IsNaN IsInf", (F32,), (BOOL,)),
    ("And Or Xor Not", (BOOL,), (BOOL,)),
    ("BitwiseAnd BitwiseOr BitwiseXor BitwiseNot", (I32, U8, I8), None),
    ("Transpose Concat", DATA, None),
    ("SpaceToDepth RMSNormalization", (F32,), None),
):  # fmt: skip
    builds(*_names.split(), dtypes=_dtypes, results=_results, by_rank=True)(_anything)
builds(
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Split",
    "Expand",
    "Tile",
    "Where",
    "Identity",
    "ByteTable",
    dtypes=DATA,
)(_anything)
builds("Gather", "GatherND", "ReverseSequence", dtypes=DATA, indices=(1,))(_anything)
builds("Shape", "Size", dtypes=DATA, places=(0,))(_anything)
builds("ScatterElements", indices=(1,))(_anything)


@builds("Slice", dtypes=DATA)
def slices(s: Site, op: Any) -> None:
    s.want(isinstance(s.shape(1)[0], int), "bounds of a number that only the run tells")


@builds("GatherElements", dtypes=DATA, indices=(1,))
def gather_elements(s: Site, op: Any) -> None:
    others = [i for i in range(s.rank()) if i != op.axis % s.rank()]
    s.want(all(s.shape(0)[i] == s.shape(1)[i] for i in others), "indices of fewer lines than there are")


@builds("ScatterND", indices=(1,))
def scatter_nd(s: Site, op: Any) -> None:
    s.want(op.reduction == "none", "several updates of one element")


@builds("Pad", dtypes=DATA)
def pad(s: Site, op: Any) -> None:
    s.want(op.mode in ("constant", "reflect", "edge"), f"mode {op.mode}")
    s.want(op.mode == "constant" or min(*s.ints(1, "pads"), 0) == 0, "negative pads of a mirror")


@builds("DepthToSpace")
def depth_to_space(s: Site, op: Any) -> None:
    s.want(s.rank() in (3, 4, 5), "images of other than 1 to 3 axes")


@builds("OneHot", indices=(0,))
def one_hot(s: Site, op: Any) -> None:
    s.want(s.type(0).dtype == I32, "indices of 64 bits, which OpenVINO cuts to 32")


@builds("Cast", dtypes=DATA)
def cast(s: Site, op: Any) -> None:
    """Between dtypes whose conversion is the same everywhere."""
    source = s.type(0).dtype
    s.want(source != F32 or op.to == F32, "a conversion of floats, which OpenVINO does not cut as ONNX does")
    s.want(op.to not in BYTES or source in (BOOL, op.to), "a conversion of numbers that bytes may not hold")


# --- norms and lines -------------------------------------------------------------------------------------------------


@builds("InstanceNormalization", "GroupNormalization")
def image_norm(s: Site, op: Any) -> None:
    s.want(s.rank() > 2, "images without spatial axes")


@builds("LayerNormalization", by_rank=True)
def layer_norm(s: Site, op: Any) -> None:
    s.want(not op.stats, "the statistics")


@builds("LRN")
def lrn(s: Site, op: Any) -> None:
    s.want(op.size % 2 == 1, "an even number of neighbours")
    s.want(s.rank() == 4, "images of other than 2 axes")


@builds("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")
@builds("ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
def reduction(s: Site, op: Any) -> None:
    s.want(s.rank() > 0, "a reduction of a number")
    s.want(not op.noop_with_empty_axes or (s.given(1) and bool(s.ints(1, "axes"))), "a reduction of no axes")


@builds("Softmax", "LogSoftmax", "LpNormalization")
def line(s: Site, op: Any) -> None:
    s.want(s.rank() > 0, "a line of a number")


@builds("CumSum")
def cum_sum(s: Site, op: Any) -> None:
    s.ints(1, "axis")


@builds("ArgMax", "ArgMin", places=(0,))
def arg(s: Site, op: Any) -> None:
    s.want(not op.select_last_index, "the last of equals")
    s.want(s.rank() > 0, "the greatest of a number")


@builds("TopK", dtypes=NUMBER, places=(1,))
def topk(s: Site, op: Any) -> None:
    s.want(s.ints(1, "k")[0] > 0, "a list of none")


# --- products and images ---------------------------------------------------------------------------------------------


@builds("Einsum")
def einsum(s: Site, op: Any) -> None:
    equation = op.equation.replace(" ", "")
    s.want("->" in equation and equation.islower() and "." not in equation, "an equation with what is implied")
    terms = equation.partition("->")[0].split(",")
    s.want(all(len(set(t)) == len(t) for t in terms), "a diagonal")


def spatial(s: Site) -> None:
    """Refuse images of another number of axes than OpenVINO has."""
    s.want(1 <= s.rank() - 2 <= 3, "images of other than 1 to 3 axes")


@builds("Conv", by_rank=True)
def conv(s: Site, op: Any) -> None:
    spatial(s)


@builds("ConvTranspose")
def conv_transpose(s: Site, op: Any) -> None:
    spatial(s)
    s.want(not op.output_shape and not op.auto_pad.startswith("SAME"), "pads that follow from sizes")


@builds("MaxPool")
def max_pool(s: Site, op: Any) -> None:
    s.want(not op.indices, "where the greatest was")
    spatial(s)


@builds("AveragePool")
def average_pool(s: Site, op: Any) -> None:
    spatial(s)
    s.want(set(op.windows.dilations) == {1}, "windows with gaps")
    s.want(not (op.windows.ceil and op.count_include_pad), "windows that end beyond the pads and count them")


@builds("Resize")
def resize(s: Site, op: Any) -> None:
    s.want(op.coordinate_transformation_mode in COORDINATES, f"coordinates {op.coordinate_transformation_mode}")
    s.want(not (op.antialias or op.exclude_outside), "weights that are made anew at borders")
    s.want(op.keep_aspect_ratio_policy == "stretch", "sizes that keep the aspect")
    axes = [a % s.rank() for a in op.axes] or list(range(s.rank()))
    wanted = s.ints(3, "sizes") if s.given(3) else s.known(2, "scales")
    moving = {a for a, n in zip(axes, wanted, strict=True) if n != (s.shape()[a] if s.given(3) else 1)}
    if op.mode != "nearest" and not (s.rank() == 4 and moving <= {2, 3}):
        raise NotThereError("samples between elements along other axes than the last two of four")
    s.want(s.rank() in (4, 5) and moving <= set(range(2, s.rank())), "resampled batches or channels")


@builds("GridSample")
def grid_sample(s: Site, op: Any) -> None:
    s.want(s.rank() == 4, "images of other than 2 axes")
    s.want(all(d <= EXACT for d in s.shape() if isinstance(d, int)), "coordinates that f32 does not hold")


@builds("RoiAlign", indices=(2,))
def roi_align(s: Site, op: Any) -> None:
    s.want(op.mode == "avg", "the greatest sample")
    s.want(op.sampling_ratio > 0, "samples by the size of each box: OpenVINO takes wrong ones")


@builds("LSTM", "GRU", others={4: (I32,)})
def recurrent(s: Site, op: Any) -> None:
    s.want(op.layout == 0, "the batch stands first")
    plain = [n.lower() for n in op.activations] in ([], [n.lower() for n in op.defaults] * op.directions)
    s.want(plain and not op.activation_alpha and not op.activation_beta, "other activations than usual")
    s.want(op.clip is None, "gates that are clipped")
    s.want(not getattr(op, "input_forget", False) and not s.given(7), "gates that look at the cell")
    s.want(isinstance(s.shape(2)[2], int), "states of a size that only the run tells")
    if s.given(4):
        lengths, size = s.known(4, "lengths"), s.shape()[0]
        s.want(isinstance(size, int), "lengths of sequences whose size only the run tells")
        s.want(bool(((lengths >= 1) & (lengths <= size)).all()), "lengths of 0, or beyond the sequence")


# --- bytes -----------------------------------------------------------------------------------------------------------


@builds("DequantizeLinear", dtypes=(U8, I8, I32), others={1: (F32,)}, results=(F32,))
@builds("QuantizeLinear", dtypes=(F32,), others={2: BYTES}, results=BYTES)
def conversion(s: Site, op: Any) -> None:
    s.want(s.rank() > 0, "one number")
    for i in (1, 2):
        s.want(not s.given(i) or np.prod(s.dims(i)) == 1 or (s.rank(i) == 1 and not op.block_size), "scales in blocks")
