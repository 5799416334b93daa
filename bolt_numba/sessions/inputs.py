"""What a caller gives a session: arrays held against what the model declares, names, sizes, options."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.errors import DTypeError, OptionError, ShapeError
from bolt_numba.base.options import not_among, wanted_threads
from bolt_numba.base.types import (
    BOOL,
    STRING,
    AnyDType,
    Array,
    NestedType,
    OptionalType,
    SequenceType,
    Sym,
    TensorSpec,
    TensorType,
    dtype_name,
    sizes_name,
)
from bolt_numba.ops.dtypes import plain_bools
from bolt_numba.runtime.copies import Views, dense, is_elsewhere

if TYPE_CHECKING:
    from bolt_numba.base.options import Options
    from bolt_numba.ir.graph import Graph
    from bolt_numba.runtime.device import Device
    from bolt_numba.runtime.prepared import Prepared, Targets


def spec_of(name: str, t: TensorType) -> TensorSpec:
    shape = None if t.shape is None else tuple(str(d) if isinstance(d, Sym) else d for d in t.shape)
    return TensorSpec(name, t.dtype, shape, t if isinstance(t, NestedType) else None)


def with_caches(graph: Graph, kind: str | None) -> Graph:
    """The graph with caches of the kind that is asked for.  Raises OptionError where it cannot have them."""
    if kind is None:
        return graph
    from bolt_numba.passes.quantised import caches  # most sessions have none

    return caches.with_caches(graph, kind)


def as_input(spec: TensorSpec, given: Any, far: Sequence[Device] = (), views: bool = False) -> Any:
    """A C-contiguous array of the declared dtype; Python numbers and lists are converted, other dtypes refused.

    far: devices in whose memory it may stay.  views: whether it may stay one that is not contiguous.
    """
    if spec.nested is not None:
        return _as_nested(spec.name, spec.nested, given)
    stays = far and is_elsewhere(given) and spec.dtype is not BOOL  # the bytes of bools are looked at below
    if type(given) is not np.ndarray and not stays:
        given = as_array(spec, given)
    if spec.dtype == STRING and given.dtype.kind == "U":
        given = given.astype(STRING)
    if given.dtype != spec.dtype:
        wanted = f"wanted {dtype_name(spec.dtype)}: {_cast(spec, given)}"
        raise DTypeError(f"input {spec.name!r}: got {_content(given)}, {wanted}")
    if spec.shape is not None and not _fits(spec.shape, given.shape):
        wanted = f"wanted {sizes_name(spec.shape)}{_turned(spec, given.shape)}"
        raise ShapeError(f"input {spec.name!r}: got shape {given.shape}, {wanted}")
    if not views and not given.flags.c_contiguous:
        (given,) = dense([given], [spec.name])
    if spec.dtype == STRING:
        _want_texts(spec.name, given)
    return plain_bools(given) if spec.dtype is BOOL else given


def _fits(wanted: Sequence[int | str], shape: Sequence[int]) -> bool:
    """Whether a shape is one of these sizes, of which those with a name are free."""
    if len(wanted) != len(shape):
        return False
    return all(size == got or isinstance(size, str) for size, got in zip(wanted, shape, strict=True))


def _turned(spec: TensorSpec, shape: tuple[int, ...]) -> str:
    """The call that makes an array of this shape fit, if only its axes are others than wanted."""
    wanted, array = spec.shape or (), _variable(spec)
    found = [(f"{array}[None]", (1, *shape)), (f"{array}[..., None]", (*shape, 1))]
    for first, batch in (("", shape[:1]), ("[None]", (1,))):  # images, whose channels are elsewhere, and one of them
        sizes = shape if first == "" else (1, *shape)
        if len(sizes) == IMAGE_AXES:
            rows = [((0, 3, 1, 2), (*batch, sizes[3], sizes[1], sizes[2]))]
            rows += [((0, 2, 3, 1), (*batch, sizes[2], sizes[3], sizes[1]))]
            found += [(f"{array}{first}.transpose{axes}", turned) for axes, turned in rows]
    return next((f": {call} makes it" for call, made in found if _fits(wanted, made)), "")


def _content(given: Array) -> str:
    """What an array holds, as a caller would say it."""
    if given.dtype.kind in "US":
        return "texts" if given.dtype.kind == "U" else "bytes"
    if given.dtype != STRING:
        return dtype_name(given.dtype)
    kinds = sorted({type(item).__name__ for item in given.reshape(-1)[:MOST_LOOKED_AT].tolist()})
    return f"objects{' of ' if kinds else ''}{' and '.join(kinds)}"


def _variable(spec: TensorSpec) -> str:
    return spec.name if spec.name.isidentifier() else "x"


def _cast(spec: TensorSpec, given: Array) -> str:
    """The call that makes the dtype that an input has."""
    array = _variable(spec)
    if given.dtype == STRING and {*map(type, given.reshape(-1)[:MOST_LOOKED_AT])} & {list, np.ndarray}:
        return OF_ROWS
    if spec.dtype == STRING:
        return f"{array}.astype(str) makes it"
    return f"{array}.astype({'np' if spec.dtype.isbuiltin == 1 else 'ml_dtypes'}.{spec.dtype.type.__name__}) makes it"


OF_ROWS = "np.stack makes an array of rows of one shape, session.run_rows takes rows of any"
IMAGE_AXES = 4
"""Of a batch of images."""
MOST_LOOKED_AT = 100
"""Elements of which a message names the types."""
Wanted = tuple[TensorSpec, str, Any, int, list[int], tuple[Any, ...]]
"""An input and its name; dtype and rank of an array that is one as it is, and axes of some size, with these sizes."""


def wanted_of(spec: TensorSpec) -> Wanted:
    """What tells at once that an array is an input as it is; the dtype is None where `as_input` has to look."""
    shape = spec.shape or ()
    is_plain = spec.nested is None and spec.shape is not None and spec.dtype is not BOOL
    fixed = [axis for axis, size in enumerate(shape) if not isinstance(size, str)]
    sizes = tuple([shape[axis] for axis in fixed])
    return spec, spec.name, spec.dtype if is_plain else None, len(shape), fixed, sizes


def inputs_among(wanted: Sequence[Wanted], feeds: Any, far: Sequence[Device]) -> list[Any]:
    """The inputs that a caller gives by name, as `as_input` has them; `Views` where some are not contiguous."""
    arrays: list[Any] = []
    for spec, name, dtype, rank, fixed, sizes in wanted:
        try:
            given = feeds[name]
        except KeyError:
            raise ShapeError(wrong_names(list(feeds), [one.name for one, *_ in wanted])) from None
        except (TypeError, IndexError):
            raise DTypeError(f"inputs: got a {type(feeds).__name__}, wanted arrays by name") from None
        if type(given) is np.ndarray and given.dtype is dtype and given.flags.c_contiguous:
            shape = given.shape
            if len(shape) == rank and tuple(map(shape.__getitem__, fixed)) == sizes:
                if dtype is STRING:
                    _want_texts(name, given)
                arrays.append(given)
                continue
        if len(feeds) < len(wanted):  # said before what is wrong with those that are given
            raise ShapeError(wrong_names(list(feeds), [one.name for one, *_ in wanted]))
        array = as_input(spec, given, far, views=dtype is not None)
        if dtype is not None and not array.flags.c_contiguous and type(arrays) is list:
            arrays = Views(arrays)
        arrays.append(array)
    return arrays


def wrong_names(given: Sequence[Any], names: Sequence[str]) -> str:
    """What is wrong with the names of inputs that a caller gives."""
    unknown = [name for name in given if name not in names]
    missing = [name for name in names if name not in given]
    if not unknown:
        return f"inputs: got {list(given)}, missing {missing}"
    is_plain = len(unknown) == len(missing) == 1  # a wrong one, and the only one that it can stand for
    return not_among("inputs", unknown, names, dict(zip(unknown, missing, strict=True)) if is_plain else {})


def _want_texts(name: str, given: Array) -> None:
    """An array of objects may hold anything."""
    if given.size == 1 and type(given.item()) is str:
        return
    if all(issubclass(kind, str) for kind in set(map(type, given.reshape(-1).tolist()))):
        return
    place, wrong = next((i, item) for i, item in np.ndenumerate(given) if not isinstance(item, str))
    is_number = isinstance(wrong, (int, float, np.number)) and wrong == wrong
    mend = "str(...) makes one" if is_number else "fill in what is missing"
    at = f"[{', '.join(map(str, place))}]"
    raise DTypeError(f"input {name!r}: got {wrong!r:.40} at {at}, a {type(wrong).__name__}, wanted texts: {mend}")


def as_array(spec: TensorSpec, given: Any) -> Array:
    """An array of what is none; Python numbers and lists get the declared dtype.  Raises DTypeError."""
    if given is None:
        raise DTypeError(f"input {spec.name!r}: got None, wanted {dtype_name(spec.dtype)}")
    try:
        if isinstance(given, np.generic) or hasattr(given, "__array_interface__") or hasattr(given, "__array__"):
            return np.asarray(given)
        if hasattr(given, "__dlpack__"):
            return np.from_dlpack(given)
        return plain_array(given, spec.dtype)
    except MemoryError:
        raise
    except Exception as error:  # of any kind: foreign objects convert themselves
        kind = type(given).__name__
        told = OF_ROWS if "inhomogeneous" in str(error) else error
        raise DTypeError(f"input {spec.name!r}: got a {kind}, wanted {dtype_name(spec.dtype)}: {told}") from error


def plain_array(given: Any, dtype: np.dtype[Any]) -> Array:
    """Python numbers and lists as an array.  Raises TypeError where a fraction would be cut off."""
    array = np.asarray(given, dtype)
    if dtype.kind in "iu" and not np.array_equal(array, np.asarray(given)):
        raise TypeError("a number is no integer")
    return array


def _as_nested(name: str, wanted: TensorType, given: Any) -> Any:
    """A list, None or dictionary by its type, tensors inside as `as_input` takes them."""
    if isinstance(wanted, OptionalType):
        return None if given is None else _as_nested(name, wanted.element, given)
    if isinstance(wanted, SequenceType):
        if not isinstance(given, (list, tuple)):
            raise DTypeError(f"input {name!r}: got a {type(given).__name__}, wanted {wanted}")
        return [_as_nested(f"{name}[{i}]", wanted.element, v) for i, v in enumerate(given)]
    return given if isinstance(wanted, NestedType) else as_input(spec_of(name, wanted), given)


def names_of(given: Any) -> list[str]:
    """Names of outputs as a list, which is read twice."""
    names: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, (str, bytes)) else [None]
    if not all(isinstance(name, str) for name in names):
        raise DTypeError(f"names: got {given!r:.80}, wanted a list of names")
    return names


def sizes_of(name: str, given: Any) -> tuple[Any, ...]:
    """A shape as a tuple."""
    if not isinstance(given, Iterable):
        raise ShapeError(f"input {name!r}: shape: got {given!r:.80}, wanted sizes")
    return tuple(given)


def check_no_plug_ins(options: Options) -> None:
    """Options that only plug-ins obey are not given to a session without any."""
    for what, given in (("properties", options.properties), ("placement", options.placement)):
        if given:
            shown = str(given) if isinstance(given, PurePath) else given
            named = [*given] if isinstance(given, Mapping) else ["openvino"]
            wanted = f"wanted its device named, as device={[*named, 'cpu']}"
            raise OptionError(f"{what}: got {shown!r:.80} for a session without plug-ins, {wanted}")


def check_apart(buffers: Mapping[str, Any]) -> None:
    """No two outputs go to the same memory; buffers are dense."""
    near = sorted((b.ctypes.data, b.nbytes, name) for name, b in buffers.items() if isinstance(b, np.ndarray))
    far = sorted((b.address, b.nbytes, name) for name, b in buffers.items() if is_elsewhere(b))
    pairs = itertools.chain(itertools.pairwise(near), itertools.pairwise(far))
    for (first, nbytes, one), (second, more, other) in pairs:
        if more and second < first + nbytes:
            raise ShapeError(f"buffers for outputs {one!r} and {other!r}: got arrays that overlap, wanted two")


def check_buffer(name: str, buffer: Any, shape: tuple[int, ...], dtype: AnyDType) -> None:
    """What an output is to be written to has its shape and dtype."""
    if not (isinstance(buffer, np.ndarray) or is_elsewhere(buffer)):
        raise DTypeError(f"buffer for output {name!r}: got a {type(buffer).__name__}, wanted an array")
    if buffer.shape != shape:
        raise ShapeError(f"buffer for output {name!r}: got shape {buffer.shape}, wanted {shape}")
    if buffer.dtype != dtype:
        raise DTypeError(f"buffer for output {name!r}: got {dtype_name(buffer.dtype)}, wanted {dtype_name(dtype)}")
    if not buffer.flags.c_contiguous or not buffer.flags.writeable:
        raise ShapeError(f"buffer for output {name!r}: got a strided or read-only array, wanted a contiguous one")


def targets_among(
    prepared: Prepared, names: Sequence[str], arrays: Sequence[Array], buffers: Mapping[str, Array]
) -> Targets:
    """For each output the buffer that a run of these inputs may write it to straight away."""
    from bolt_numba.runtime.copies import Spans, can_write_into
    from bolt_numba.runtime.prepared import Targets

    targets, inputs = list[Array | None]([None] * len(names)), Spans(arrays)
    for index, name in enumerate(names):
        buffer = buffers.get(name)
        if buffer is not None and prepared.cut is None and not prepared.late:
            shape, dtype = prepared.type_of(index)
            check_buffer(name, buffer, shape, dtype)
            if can_write_into(prepared, index, buffer, inputs):
                targets[index] = buffer
    return Targets(prepared, targets)


def shared_symbols(specs: Sequence[TensorSpec]) -> list[tuple[int, int, int, int]]:
    """Dimensions that one symbol stands for: an input, its axis, and the input and axis that had the symbol first."""
    first: dict[str, tuple[int, int]] = {}
    places = [(d, (i, axis)) for i, s in enumerate(specs) for axis, d in enumerate(s.shape or ()) if isinstance(d, str)]
    return [(*place, *first[d]) for d, place in places if first.setdefault(d, place) != place]


def contradiction(
    shared: Sequence[tuple[int, int, int, int]], specs: Sequence[TensorSpec], arrays: Sequence[Array]
) -> str | None:
    """What says that one symbol has several sizes, if it has.  shared: of `shared_symbols`."""
    for i, axis, j, other in shared:
        got, size = arrays[i].shape[axis], arrays[j].shape[other]
        if got != size:
            symbol = specs[i].shape[axis]  # type: ignore[index]
            return f"dimension {symbol!r}: got {got} in input {specs[i].name!r}, but {size} in {specs[j].name!r}"
    return None


def threads_of(threads: Any) -> int:
    """How many threads share a call; None: as many as the environment says."""
    from bolt_numba.devices.threads import can_team

    found = wanted_threads("threads", threads)
    return found if can_team() else 1


def zeros_of(spec: TensorSpec, given: Any) -> Array:
    """An input of zeros, or of empty texts, of a shape, once its memory is granted.

    given: sizes of all axes; those that the model declares where the caller says nothing.
    """
    shown = sizes_name(spec.shape or ())
    if given is spec.shape and (given is None or any(isinstance(d, str) for d in given)):
        raise ShapeError(f"input {spec.name!r}: got no sizes, wanted {shown}: {_variable(spec)}=(...) gives them")
    dims = sizes_of(spec.name, given)
    if not all(isinstance(d, (int, np.integer)) and d >= 0 for d in dims):
        got = " ".join(repr(given).split())
        raise ShapeError(f"input {spec.name!r}: shape: got {got:.60}, wanted sizes as {shown}")
    if spec.shape is not None and not _fits(spec.shape, dims):
        raise ShapeError(f"input {spec.name!r}: got shape {dims}, wanted {shown}")
    sizes = tuple(map(int, dims))
    ask(math.prod(sizes) * spec.dtype.itemsize, f"input {spec.name!r}")
    return np.full(sizes, "", STRING) if spec.dtype == STRING else np.zeros(sizes, spec.dtype)
