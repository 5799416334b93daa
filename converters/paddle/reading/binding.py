"""An operation's slots and attributes as the parameters of its reader, in one form for both kinds of program.

- Slots bind by name in snake case, without a final "Tensor" or "TensorList"; PIR's operands bind by place.
- A positional parameter without an operand takes the attribute of its name, as a constant (integers become i64).
- A parameter that is annotated ``Values`` takes all tensors of a slot, as a tuple.  For another, several tensors are
  the elements of one, and are joined.
- A keyword takes an attribute, or the content of a slot that is known.  Dtypes arrive as dtypes, None where open.
- An attribute that the reader does not know may be there when it is in `IGNORED`, or off (False, 0, empty).
"""

from __future__ import annotations

import functools
import keyword
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bolt_numba.base.types import I64, Array
from bolt_numba.converters.paddle.reading.registry import Spelling
from bolt_numba.converters.paddle.types import NUMBERED
from bolt_numba.converters.readers import Reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.shape import Concat, Reshape
from bolt_numba.ops.pointwise import Cast

if TYPE_CHECKING:
    from bolt_numba.converters.paddle.reading.graph import PaddleBuilder

Values: TypeAlias = tuple[Value, ...]

SAME = {
    "trans_x": "transpose_x", "trans_y": "transpose_y", "keep_dim": "keepdim", "keepdims": "keepdim",
    "data_layout": "data_format", "ksize": "kernel_size",
}  # fmt: skip
"""Attributes that have two spellings -> the one that readers use."""

IGNORED = frozenset((
    "op_callstack", "op_device", "op_namescope", "op_role", "op_role_var", "with_quant_attr", "struct_name", "place",
    "place_type", "force_cpu", "is_test", "use_cudnn", "use_mkldnn", "mkldnn_data_type", "mkldnn_data_format",
    "workspace_size_mb", "exhaustive_search", "use_quantizer", "scale_in",
    "scale_out", "scale_x", "scale_y", "scale_weights", "scale_in_eltwise", "infer_flags", "im2col_step",
    "stop_gradient", "persistable", "use_addto", "fix_seed", "seed", "quantization_type", "bit_length_calibrated",
    "in_dtype",
    "op_func", "shape_range_info", "name", "out_threshold", "name_scope", "use_global_beam", "dist_attr",
    "fuse_brelu_threshold", "out_dtype_default", "dtype_promoted", "is_sparse", "remote_prefetch", "epmap",
    "entry", "entry_config", "table_class", "grad_inplace", "slot",
    "height_sections", "table_names", "trainer_id", "is_distributed", "sync_mode", "activation_bits", "weight_bits",
    "quant_bits", "activation_quantize_type", "weight_quantize_type", "skip_quant", "use_curand",
))  # fmt: skip
"""Attributes without a meaning for the result of a run, in snake case."""
_MEANINGLESS = {
    "batch_norm inplace_abn sync_batch_norm": "trainable_statistics momentum",
    "c_embedding lookup_table_v2 embedding": "vocab_size",
    "correlation": "corr_type_multiply",
    "cross_entropy_with_softmax softmax_with_cross_entropy": "ignore_index numeric_stable_mode soft_label use_softmax",
    "fake_quantize_range_abs_max": "window_size",
    "flash_attn memory_efficient_attention": "return_softmax rng_name",
    "fused_bias_dropout_residual_layer_norm": "dropout_fix_seed dropout_seed",
    "fused_elemwise_activation fused_elemwise_add_activation": "save_intermediate_out",
    "fused_rms_norm_quant rms_norm": "quant_max_bound quant_min_bound quant_round_type",
    "im2sequence": "out_stride",
    "lp_pool2d": "pooling_type",
    "moving_average_abs_max_scale": "moving_rate",
    "one_hot one_hot_v2": "allow_out_of_range",
    "argsort": "stable",
    "top_k_v2 topk": "sorted",
    "uniform uniform_random": "diag_val",
    "unique unique_consecutive": "return_counts return_index return_inverse",
    "unpool unpool3d": "unpooling_type",
}
"""Operators, and attributes that have no such meaning for them."""
IGNORED_OF = {name: frozenset(words.split()) for names, words in _MEANINGLESS.items() for name in names.split()}

_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@functools.cache
def snake(name: str) -> str:
    """A slot or attribute as a parameter is called: ``FpnRois`` is ``fpn_rois``, ``lambda`` is ``lambda_``."""
    made = _WORD.sub("_", name).lower().replace(".", "_")
    made = SAME.get(made, made)
    return f"{made}_" if keyword.iskeyword(made) else made


def bind(
    b: PaddleBuilder, reader: Reader, spelling: Spelling, slots: Sequence[tuple[str, Sequence[Value | None]]],
    attributes: dict[str, Any],
) -> tuple[list[Any], dict[str, Any]]:  # fmt: skip
    """Operands by place and attributes by name, as `Reader.read` takes them."""
    given: dict[str, Any] = {}
    is_pir = all(name in ("", "*") for name, _ in slots)
    if is_pir and len(slots) > len(reader.inputs):
        raise b.invalid("number of operands", len(slots), f"at most {len(reader.inputs)}")
    for place, (slot, values) in enumerate(slots):
        parameter, is_list = (reader.inputs[place], slot == "*") if is_pir else _parameter(slot, reader, spelling)
        found = [v for v in values if v is not None]
        if found and parameter not in given:
            given[parameter] = _operand(b, reader, parameter, found, is_list)
        elif found:
            raise b.unsupported(f"two operands for '{parameter}'")
    _add_attributes(b, reader, spelling, attributes, given)
    named = {name: given.pop(name) for name in list(given) if name in reader.attributes}
    operands = [given.pop(name, () if _kind(reader, name) == "Values" else None) for name in reader.inputs]
    if given:
        raise b.unsupported(f"operand '{min(given)}'")
    while operands and operands[-1] is None:
        operands.pop()
    return operands, named


def _parameter(slot: str, reader: Reader, spelling: Spelling) -> tuple[str, bool]:
    """The parameter of a slot of an old program, and whether the slot holds its elements one by one."""
    if slot in spelling.slots:
        name = spelling.slots[slot]
        return name.rstrip("*"), name.endswith("*")
    name = snake(slot)
    known = {*reader.inputs, *reader.attributes}
    for end in ("_tensor_list", "_tensor", ""):
        if name not in known and name.endswith(end) and name.removesuffix(end) in known:
            return name.removesuffix(end), end == "_tensor_list"
    return name, False


def _kind(reader: Reader, name: str) -> str:
    return reader.spelled.get(name, "").removesuffix(" | None")


def _operand(b: PaddleBuilder, reader: Reader, name: str, found: list[Value], is_list: bool) -> Any:
    """What a parameter is given for the tensors of its slot."""
    kind = _kind(reader, name)
    if kind == "Values":
        return tuple(found)
    value = joined(b, found) if is_list or len(found) > 1 else found[0]
    if name in reader.inputs:
        return value
    known = value.type.known
    if known is None:
        raise b.unsupported(f"'{name}' that only the run tells")
    return tuple(known.reshape(-1).tolist()) if kind in ("Ints", "Floats") else known.reshape(-1)[0].item()


def joined(b: PaddleBuilder, elements: Sequence[Value]) -> Value:
    """A list whose elements stand in tensors of their own."""
    whole = np.array([-1], np.int64)
    if len({x.type.dtype for x in elements}) > 1:
        elements = [x if x.type.dtype == I64 else b(Cast(I64), x) for x in elements]
    flat = [x if x.type.shape == (1,) else b(Reshape(), x, whole) for x in elements]
    return flat[0] if len(flat) == 1 else b(Concat(0), *flat)


def _add_attributes(
    b: PaddleBuilder, reader: Reader, spelling: Spelling, attributes: dict[str, Any], given: dict[str, Any]
) -> None:
    ignored = IGNORED | IGNORED_OF.get(b.operation.type, frozenset())
    for spelled, value in attributes.items():
        name = spelling.slots.get(spelled) or snake(spelled)
        if name in given or value == "AnyLayout":  # what old programs write where there is nothing to say
            continue
        if name in reader.attributes:
            given[name] = _as_wanted(value, _kind(reader, name))
        elif name in reader.inputs:
            if _kind(reader, name) != "Values":
                given[name] = b.const(_array(value))
        elif value not in (False, 0, "", (), None) and name not in ignored:
            raise b.unsupported(f"attribute '{spelled}' = {str(value)[:60]}")


def _array(value: Any) -> Array:
    """An attribute as an operand: integers as i64, numbers as f32."""
    made = np.array(value)
    if made.dtype.kind == "U":  # a number as text, which keeps its digits
        made = made.astype(np.float64)
    if made.dtype.kind in "iu" or made.size == 0:
        return made.astype(np.int64)
    return made.astype(np.float32) if made.dtype.kind == "f" else made


def _as_wanted(value: Any, kind: str) -> Any:
    """An attribute as its annotation says: a dtype for its number, one number for a list of one and the reverse."""
    if kind == "AnyDType":
        return NUMBERED.get(value) if isinstance(value, int) else value
    if kind in ("Ints", "Floats", "Texts") and not isinstance(value, tuple):
        return (value,)
    if kind in ("int", "float") and isinstance(value, tuple) and len(value) == 1:
        return value[0]
    return value
