"""Inputs to feed a model with: random arrays, and sizes for what it leaves free, where a caller names none.

Sizes are guessed by name, by place and by the model's own hints, and tried: the first with which all types can be
inferred are taken.  Reads no files; the command line does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.errors import BoltError, DTypeError, ShapeError
from bolt_numba.base.types import BOOL, STRING, Array, TensorSpec, sizes_name
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ir.sizes import with_shapes
from bolt_numba.sessions.inputs import spec_of

Sizes = dict[str, int]
"""What symbols stand for."""
Shapes = dict[str, tuple[int, ...]]
"""Shapes of inputs by name."""

TOKENS = (128, 64, 32, 77, 256, 512, 16, 8, 1)
FRAMES = (128, 100, 300, 3000, 16, 1)
SAMPLES = (16000, 512, 576, 1024, 32000, 48000, 1280, 160000, 256, 128, 64, 16, 1)
CHUNKS = (512, *SAMPLES)
"""Of sound that comes piece by piece, to a model that is given its state."""
OTHER = (1, 2, 16, 64, 128, 224)
SQUARES = (64, 512, 320, 128, 32, 28)
IMAGES = ((224, 224), (640, 640), (48, 320), (32, 320), *((side, side) for side in SQUARES))
"""Rows and columns; of what gives a map of its image, as detectors do, those of 640 come first."""
PAST = (16, 1, 0)
ROOMS = (2 * TOKENS[0],)
"""Positions of a cache that has room for more tokens than come at once."""
DIGITS = 9
"""Of a number in the name of a size: a longer one is a name."""
HINTS = ("imgsz", "image_size", "input_size")
"""Metadata in which files tell the size of their images."""
RATES = ("sr", "sample_rate", "sampling_rate", "samplerate")
"""Names of inputs that tell the samples of a second; models know few, and this one of nearly all of them."""
RATE = 16000
MOVES = ("Cast", "Transpose", "Expand", "Slice", "Concat")
"""Operators whose results hold the integers that they are given."""
ENOUGH = 8
"""Numbers that integers are compared with, from which on these are a table of all that they may be."""


def model_feeds(
    graph: Graph,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    given: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """As `random_feeds`, with `complete_shapes` for what the shapes leave free.

    Integers fit the model's tables, and texts are among those that it knows.

    Raises ShapeError for shapes that do not fit, DTypeError for what is no array.
    """
    sizes = complete_shapes(graph, shapes, given)
    rng = np.random.default_rng(seed)
    drawn = {name: rng.choice(texts, sizes[name]) for name, texts in known_texts(graph).items() if name in sizes}
    return random_feeds(_specs(graph), sizes, seed, {**drawn, **(given or {})}, index_bounds(graph))


def known_texts(graph: Graph) -> dict[str, Array]:
    """Of inputs of texts those that the model compares them with: categories, keys, n-grams."""
    found: dict[str, Array] = {}
    for value in graph.caller_inputs:
        texts: list[str] = []
        seen, rest = set[int](), [value] if value.type.dtype == STRING else []
        while rest:
            for node in rest.pop().uses.times:
                if id(node) not in seen:
                    seen.add(id(node))
                    consts = [v.const for v in node.operands if v is not None and v.const is not None]
                    texts += next((c.reshape(-1).tolist() for c in consts if c.dtype == STRING), [])
                    texts += [item for item in getattr(node.op, "pool", ()) if isinstance(item, str)]
                    rest += [v for v in node.outputs if v.type.dtype == STRING]
        if texts:
            found[value.name] = np.array(texts, STRING)
    return found


def complete_shapes(
    graph: Graph, shapes: Mapping[str, Sequence[int]] | None = None, given: Mapping[str, Array] | None = None
) -> Shapes:
    """The shape of every input, as far as its rank is known.

    shapes: of inputs; or the size of a symbol, as ``{"batch": (4,)}``.  given: arrays for inputs.
    Raises ShapeError for a name that the model has not, and where nothing that is tried fits what is left free;
    DTypeError for what is no mapping.
    """
    for what in (shapes, given):
        if what is not None and not isinstance(what, Mapping):
            raise DTypeError(f"inputs: got a {type(what).__name__}, wanted arrays or shapes by name")
    specs = _specs(graph)
    fixed, known = _told(specs, shapes or {}, given or {})
    every = _roles(specs)
    roles = {symbol: role for symbol, role in every.items() if symbol not in known}
    batches = [size for symbol, size in known.items() if every.get(symbol) == "batch"]
    if not roles:
        return _filled(specs, fixed, known)
    failed: BoltError | None = None
    for sizes in _tries(graph, roles, batches):
        found = _filled(specs, fixed, known | sizes)
        try:
            with_shapes(graph, found)
        except BoltError as error:
            failed = failed or error
        else:
            return found
    raise ShapeError(f"{_asked(specs, fixed, roles)}; sizes that were tried do not fit: {failed}")


def guessed(graph: Graph, shapes: Mapping[str, Sequence[int]], given: Mapping[str, Array]) -> list[str]:
    """Symbols whose sizes nobody told, but for those of batches.  Raises ShapeError for a name or a rank."""
    specs = _specs(graph)
    _, known = _told(specs, shapes, given)
    return [symbol for symbol, role in _roles(specs).items() if symbol not in known and role != "batch"]


def _specs(graph: Graph) -> list[TensorSpec]:
    return [spec_of(v.name, v.type) for v in graph.caller_inputs]


def _asked(specs: Sequence[TensorSpec], fixed: Shapes, symbols: Iterable[str]) -> str:
    """What is to be told, and how."""
    free = set(symbols)
    spec = next(s for s in specs if s.name not in fixed and free & set(map(str, s.shape or ())))
    names, dims = ", ".join(map(repr, symbols)), ",".join(map(str, spec.shape or ()))
    return f"input {spec.name!r}: got no size for {names}, wanted numbers: --shape '{spec.name}={dims}'"


def _told(
    specs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]], given: Mapping[str, Array]
) -> tuple[Shapes, Sizes]:
    """Shapes of inputs and sizes of symbols, as far as the caller tells them."""
    inputs = {spec.name: spec for spec in specs}
    symbols = dict.fromkeys(d for spec in specs for d in spec.shape or () if isinstance(d, str))
    fixed, known = {}, {}
    for name, shape in shapes.items():
        if name in inputs:
            fixed[name] = tuple(shape)
        elif name in symbols and len(shape) == 1:
            known[name] = shape[0]
        else:
            also = f", or one size of {', '.join(symbols)}" if symbols else ""
            raise ShapeError(f"input: got {name!r}, wanted one of {', '.join(inputs)}{also}")
    for name, array in given.items():
        if fixed.get(name, np.shape(array)) != np.shape(array):
            both = f"got shape {fixed[name]}, and an array of {np.shape(array)}"
            raise ShapeError(f"input {name!r}: {both}, wanted one of them")
    fixed |= {name: np.shape(a) for name, a in given.items() if name in inputs and inputs[name].nested is None}
    for spec in specs:
        if spec.shape is not None and len(fixed.get(spec.name, spec.shape)) != len(spec.shape):
            raise ShapeError(f"input {spec.name!r}: got shape {fixed[spec.name]}, wanted {sizes_name(spec.shape)}")
        for dim, size in zip(spec.shape or (), fixed.get(spec.name, ()), strict=False):
            if isinstance(dim, str):
                known.setdefault(dim, size)
    return fixed, known


def _filled(specs: Sequence[TensorSpec], fixed: Shapes, sizes: Mapping[str, int]) -> Shapes:
    found = dict(fixed)
    for spec in specs:
        if spec.name not in found and spec.shape is not None and spec.nested is None:
            found[spec.name] = tuple(_size(d, sizes) for d in spec.shape)
    return found


def _size(dim: int | str, sizes: Mapping[str, int]) -> int:
    """The size of a symbol, or of a sum of symbols and numbers, which some files have as names."""
    if isinstance(dim, int):
        return dim
    if dim in sizes:
        return sizes[dim]
    parts = [part.strip() for part in dim.split("+")]
    return sum(int(p) if p.isdecimal() and len(p) <= DIGITS else sizes.get(p, 1) for p in parts)


def _roles(specs: Sequence[TensorSpec]) -> dict[str, str]:
    """What each symbol seems to be, by its name or by where it stands first."""
    found: dict[str, str] = {}
    for spec in specs:
        for axis, dim in enumerate(spec.shape or ()):
            if isinstance(dim, str) and dim not in found:
                found[dim] = _role(spec, axis, dim)
    sums = {dim for dim in found if any(p.strip() in found for p in dim.split("+") if p.strip() != dim)}
    return {dim: role for dim, role in found.items() if dim not in sums}


def _role(spec: TensorSpec, axis: int, dim: str) -> str:
    shape = spec.shape or ()
    rank, name = len(shape), dim.lower()
    if "past" in name or "cache" in name:
        return "past"
    if "batch" in name or axis == 0:
        return "batch"
    if "room" in name:
        return "room"
    if spec.dtype.kind in "iu" or (rank == 3 and re.search("seq|token|length", name)):
        return "tokens"
    if rank in (4, 5):
        return _image_role(shape, axis)
    if rank == 3 and axis == 1 and isinstance(shape[0], int) and shape[0] > 1:
        return "batch"  # of a recurrent state
    if rank == 3 and shape[1] != 1 and shape[2] != 1:
        return "frames"
    return "samples" if rank in (2, 3) else "other"


def _image_role(shape: Sequence[int | str], axis: int) -> str:
    """Of images [n, c, h, w] or [n, h, w, c]; channels are those that are few."""
    is_last = isinstance(shape[-1], int) and shape[-1] <= 4 and not (isinstance(shape[1], int) and shape[1] <= 4)
    place = axis - len(shape) + (1 if is_last else 0)
    return {-2: "rows", -1: "columns"}.get(place, "other")


def _tries(graph: Graph, roles: Mapping[str, str], batches: Sequence[int] = ()) -> Iterator[Sizes]:
    """Sizes of all symbols, the likely ones first: batches that are told for other inputs, then one."""
    images = _images(graph, roles)
    is_stream = any("state" in v.name.lower() for v in graph.caller_inputs)
    samples = CHUNKS if is_stream else SAMPLES
    ways: dict[str, Sequence[int]] = {
        "past": PAST, "room": ROOMS, "tokens": TOKENS, "frames": FRAMES, "samples": samples, "other": OTHER,
        "rows": [rows for rows, _ in images], "columns": [columns for _, columns in images],
    }  # fmt: skip
    for batch in dict.fromkeys((*batches, 1)):
        ways["batch"] = (batch,)
        for index in range(max(len(ways[role]) for role in roles.values())):
            yield {symbol: ways[role][min(index, len(ways[role]) - 1)] for symbol, role in roles.items()}
    if "batch" in roles.values():  # an axis in front need not be one
        for size in SAMPLES:
            yield {symbol: size if role == "batch" else ways[role][0] for symbol, role in roles.items()}


def _images(graph: Graph, roles: Mapping[str, str]) -> list[tuple[int, int]]:
    """Rows and columns to try: the model's own, those of maps or classes first, those with the side that is known."""
    found = list(IMAGES)
    free = [symbol for symbol, role in roles.items() if role in ("rows", "columns")]
    outputs = " ".join(str(d) for _, v in graph.caller_outputs for d in v.type.shape or ())
    if any(re.search(rf"(?<![\w.]){re.escape(symbol)}(?![\w.])", outputs) for symbol in free):
        found[:2] = found[1::-1]
    for key in HINTS:
        numbers = [int(n) for n in re.findall(r"\d{1,5}", graph.metadata.get(key, ""))]
        if numbers:
            found.insert(0, (numbers[0], numbers[-1]))
    sides = [d for v in graph.caller_inputs if len(v.type.shape or ()) == 4 for d in (v.type.shape or ())[1:]]
    known = next((d for d in sides if isinstance(d, int) and d > 4), None)
    if len(free) == 1 and known is not None:
        found = [pair for pair in found if pair[0] == known and pair[1] > known] + [(known, known), *found]
    return found


# --- arrays -----------------------------------------------------------------------------------------------------------


def random_feeds(
    inputs: Sequence[TensorSpec],
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    given: Mapping[str, Array] | None = None,
    bounds: Mapping[str, int] | None = None,
) -> dict[str, Array]:
    """An array for every input: the given one, else random values of its dtype.

    shapes: for inputs with symbolic dimensions; a symbol that no shape tells is 1.  Floats are standard normal,
    integers from 0 up to what ``bounds`` has for them, else 0 or 1 (valid as masks and lengths of nearly every model),
    rates of sampling 16000, bools even odds.
    Raises ShapeError for names that are no input's and for unknown ranks, DTypeError for strings without an array.
    """
    for what in (shapes, given):
        if what is not None and not isinstance(what, Mapping):
            raise DTypeError(f"inputs: got a {type(what).__name__}, wanted arrays or shapes by name")
    shapes, given = dict(shapes or {}), dict(given or {})
    names = [spec.name for spec in inputs]
    for name in (*shapes, *given):
        if name not in names:
            raise ShapeError(f"input: got {name!r}, wanted one of {', '.join(names)}")
    sizes = _symbol_sizes(inputs, {**shapes, **{k: np.shape(v) for k, v in given.items()}})
    rng = np.random.default_rng(seed)
    ends = dict.fromkeys(names, 2) | dict(bounds or {})
    return {s.name: given[s.name] if s.name in given else _random(s, shapes, sizes, rng, ends[s.name]) for s in inputs}


def index_bounds(graph: Graph) -> dict[str, int]:
    """By name of an input of integers the end of what the smallest table has that they are indices of."""
    found: dict[str, int] = {}
    for source in graph.caller_inputs:
        left, seen = [source] if source.type.dtype.kind in "iu" else [], set()
        ends: list[int] = []
        while left:
            value = left.pop()
            seen.add(id(value))
            for node in value.uses:
                ends += _ends(node, value)
                if (node.op.is_view or node.op.name in MOVES) and id(node.output) not in seen:
                    left.append(node.output)
        if ends:
            found[source.name] = min(min(ends), int(np.iinfo(source.type.dtype).max), int(np.iinfo(np.int64).max))
    return found


def _ends(node: Node, value: Value) -> list[int]:
    """The number of entries that a node chooses one of by the content of ``value``."""
    first, second = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    if node.op.name == "Gather" and second is value and first is not None and first.type.shape is not None:
        entries = first.type.shape[getattr(node.op, "axis", 0)]
        return [entries] if isinstance(entries, int) and entries > 0 else []
    if node.op.name == "OneHot" and first is value and second is not None and second.const is not None:
        return [max(1, int(second.const.reshape(-1)[0]))]
    others = [v.const for v in node.inputs if v is not None and v.const is not None and v.const.size > ENOUGH]
    return [max(1, int(others[0].max()) + 1)] if node.op.name == "Equal" and others else []


def _symbol_sizes(inputs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """What the symbols stand for, as far as the shapes given tell."""
    sizes: dict[str, int] = {}
    for spec in inputs:
        for dim, size in zip(spec.shape or (), shapes.get(spec.name, ()), strict=False):
            if isinstance(dim, str):
                sizes.setdefault(dim, size)
    return sizes


def _random(
    spec: TensorSpec, shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int], rng: np.random.Generator, end: int
) -> Array:
    if spec.shape is None and spec.name not in shapes:
        raise ShapeError(f"input {spec.name!r}: its rank is unknown: give its shape")
    shape = shapes.get(spec.name) or tuple(sizes.get(d, 1) if isinstance(d, str) else d for d in spec.shape or ())
    if spec.dtype == STRING:
        raise DTypeError(f"input {spec.name!r}: holds strings: give an array")
    ask(math.prod(shape) * spec.dtype.itemsize, f"input {spec.name!r}")
    if spec.name.lower() in RATES:
        return np.full(tuple(shape), RATE, spec.dtype)
    if spec.dtype == BOOL or spec.dtype.kind in "iu":
        return rng.integers(0, end, tuple(shape)).astype(spec.dtype)
    return rng.standard_normal(tuple(shape), dtype=np.float32).astype(spec.dtype)
