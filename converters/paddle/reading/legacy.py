"""`ProgramDesc`, the protobuf of `.pdmodel` and `__model__`, to a `PaddleProgram`.  Source: framework.proto."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from bolt_numba.base.errors import InvalidModelError, UnsupportedOpError
from bolt_numba.base.types import TensorType
from bolt_numba.converters.bounded import text_of
from bolt_numba.converters.paddle.reading.program import LEGACY, Operation, PaddleBlock, PaddleProgram, Slots, Variable
from bolt_numba.converters.paddle.reading.structure import add_structure
from bolt_numba.converters.paddle.types import dtype_of_number, shape_of
from bolt_numba.converters.wire import IrregularError, fields, varint, what_is_wrong

Message = dict[int, list[Any]]
"""Values by field number: integers as signed 64-bit numbers, bytes, and raw bytes of what has a fixed width."""

LOD_TENSOR, SELECTED_ROWS, FEED, FETCH, TENSOR_ARRAY, READER, RAW = 7, 8, 9, 10, 13, 15, 17
"""Kinds of variables beside dtypes (VarType.Type)."""
MAX_LOD = 64
"""Levels of ragged structure; files have one or two."""
_SKIPPED = tuple(bytes((10, len(name))) + name for name in (b"op_callstack", b"op_role_var"))
"""How attributes begin that hold long texts without a meaning here."""


def parse_program(data: bytes | memoryview, what: str) -> PaddleProgram:
    """The program of a file.

    Raises InvalidModelError for bytes that are no `ProgramDesc`, or that contradict themselves.
    """
    try:
        return _LegacyParser(what).program(bytes(data))
    except IrregularError:
        raise InvalidModelError(f"{what}: got {what_is_wrong(data)}, wanted a program (.pdmodel)") from None


def message_of(data: bytes) -> Message:
    """All fields of a message."""
    found: Message = {}
    view = memoryview(data)
    for number, kind, _, at, size in fields(view, 0, len(data)):
        value: Any = data[at : at + size]
        if kind == 0:
            value = _signed(varint(view, at, at + size)[0])
        found.setdefault(number, []).append(value)
    return found


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def ints_of(values: list[Any]) -> tuple[int, ...]:
    """Repeated integers, packed or not."""
    made: list[int] = []
    for value in values:
        if isinstance(value, int):
            made.append(value)
            continue
        at, view = 0, memoryview(value)
        while at < len(view):
            number, at = varint(view, at, len(view))
            made.append(_signed(number))
    return tuple(made)


def _floats(form: str) -> Callable[[list[Any]], tuple[float, ...]]:
    """A function from repeated numbers of a width, packed or not, to floats."""
    width = struct.calcsize(form)

    def read(values: list[Any]) -> tuple[float, ...]:
        whole = b"".join(v for v in values if isinstance(v, bytes))
        if len(whole) % width or any(isinstance(v, int) for v in values):
            raise IrregularError
        return tuple(number for (number,) in struct.iter_unpack(form, whole))

    return read


def _texts(values: list[Any]) -> tuple[str, ...]:
    return tuple(text_of(bytes(v), "text") for v in values)


def _bools(values: list[Any]) -> tuple[bool, ...]:
    return tuple(v != 0 for v in ints_of(values))


def _scalars(values: list[Any]) -> tuple[Any, ...]:
    return tuple(_scalar(v) for v in values)


def _scalar(data: bytes) -> Any:
    """A `Scalar`: a bool, an integer, a number or a complex number."""
    found = message_of(data)
    kind = _one(found, 1, 0)
    if kind == 1:
        return bool(_one(found, 2, 0))
    if kind == 2:
        return _one(found, 3, 0)
    if kind == 3:
        return _last(_DOUBLES(found.get(4, [])), 0.0)
    parts = message_of(_one(found, 5, b""))
    return complex(_last(_DOUBLES(parts.get(1, [])), 0.0), _last(_DOUBLES(parts.get(2, [])), 0.0))


def _last(values: tuple[Any, ...], default: Any) -> Any:
    return values[-1] if values else default


_SINGLES, _DOUBLES = _floats("<f"), _floats("<d")
_KINDS: dict[int, tuple[int, Callable[[list[Any]], tuple[Any, ...]], bool, Any]] = {
    0: (3, ints_of, False, 0), 1: (4, _SINGLES, False, 0.0), 2: (5, _texts, False, ""),
    3: (6, ints_of, True, ()), 4: (7, _SINGLES, True, ()), 5: (8, _texts, True, ()),
    6: (10, _bools, False, False), 7: (11, _bools, True, ()), 8: (12, ints_of, False, 0),
    9: (13, ints_of, False, 0), 10: (14, ints_of, True, ()), 11: (15, ints_of, True, ()),
    12: (16, _DOUBLES, True, ()), 13: (17, _texts, False, ""), 14: (18, _texts, True, ()),
    15: (19, _DOUBLES, False, 0.0), 16: (20, _scalars, False, 0), 17: (21, _scalars, True, ()),
}  # fmt: skip
"""AttrType -> field of the value, how it is read, whether it is a list, what it is when it is absent."""


def _one(found: Message, number: int, default: Any) -> Any:
    """The value of a field that is not repeated: the last, as protobuf has it.

    Raises InvalidModelError when its kind is not that of ``default``.
    """
    values = found.get(number)
    if not values:
        return default
    if isinstance(values[-1], int) != isinstance(default, int):
        raise IrregularError
    return values[-1]


def _parts(found: Message, number: int) -> list[bytes]:
    """The messages of a repeated field."""
    values = found.get(number, [])
    if not all(isinstance(v, bytes) for v in values):
        raise IrregularError
    return values


class _LegacyParser:
    """Parses one file; equal attributes, which programs repeat, are parsed once."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.attributes: dict[bytes, tuple[str, Any]] = {}
        self.versions: dict[str, int] = {}

    def program(self, data: bytes) -> PaddleProgram:
        found = message_of(data)
        if not found.get(1):
            raise InvalidModelError(f"{self.what}: got no blocks, wanted a ProgramDesc")
        for pair in _parts(message_of(_one(found, 5, b"")), 1):
            entry = message_of(pair)
            self.versions[self.text(_one(entry, 1, b""))] = _one(message_of(_one(entry, 2, b"")), 1, 0)
        blocks = [self.block(part) for part in _parts(found, 1)]
        program = PaddleProgram(LEGACY, blocks, [], [], [], _one(message_of(_one(found, 4, b"")), 1, 0))
        program.feeds, program.fetches = _ends(blocks[0], self.what)
        add_structure(program, self.what)
        program.weights = [(name, name) for name, v in sorted(blocks[0].variables.items()) if v.is_kept]
        return program

    def text(self, data: bytes) -> str:
        return text_of(data, self.what)

    def block(self, data: bytes) -> PaddleBlock:
        found = message_of(data)
        made = PaddleBlock([self.operation(part) for part in _parts(found, 4)])
        for part in _parts(found, 3):
            name, variable = self.variable(part)
            made.variables[name] = variable
        return made

    def variable(self, data: bytes) -> tuple[str, Variable]:
        found = message_of(data)
        name, kind = self.text(_one(found, 1, b"")), message_of(_one(found, 2, b""))
        number = _one(kind, 1, 0)
        is_array = number == TENSOR_ARRAY
        if number not in (LOD_TENSOR, TENSOR_ARRAY):
            return name, Variable(None)
        outer = message_of(_one(kind, 4 if is_array else 3, b""))
        type = self.tensor_type(_one(outer, 1, b""), name)
        is_kept = bool(_one(found, 3, 0)) and not is_array
        return name, Variable(type, is_kept, is_array, _one(outer, 2, 0))

    def tensor_type(self, data: bytes, name: str) -> TensorType | None:
        found = message_of(data)
        number = _one(found, 1, 0)
        try:
            dtype = dtype_of_number(number, self.what)
        except UnsupportedOpError:
            return None
        what = f"{self.what}: variable '{name}'"
        return TensorType(dtype, shape_of((max(d, -1) for d in ints_of(found.get(2, []))), name, what))

    def operation(self, data: bytes) -> Operation:
        found = message_of(data)
        type = self.text(_one(found, 3, b""))
        attributes = dict(self.attribute(part) for part in _parts(found, 4) if not part.startswith(_SKIPPED))
        inputs, outputs = self.slots(_parts(found, 1)), self.slots(_parts(found, 2))
        return Operation(type, inputs, outputs, attributes, version=self.versions.get(type, 0))

    def slots(self, parts: list[bytes]) -> Slots:
        return [(self.text(_one(m, 1, b"")), tuple(map(self.text, _parts(m, 2)))) for m in map(message_of, parts)]

    def attribute(self, data: bytes) -> tuple[str, Any]:
        if data not in self.attributes:
            found = message_of(data)
            name, kind = self.text(_one(found, 1, b"")), _one(found, 2, 0)
            if kind not in _KINDS:
                raise InvalidModelError(f"{self.what}: attribute '{name}': got type {kind}, wanted 0 to 17")
            number, read, is_list, default = _KINDS[kind]
            values = read(found.get(number, []))
            self.attributes[data] = name, values if is_list else _last(values, default)
        return self.attributes[data]


def _ends(block: PaddleBlock, what: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Names of what is fed and of what is fetched, by column; these operations are taken out of the block."""
    feeds: dict[int, str] = {}
    fetches: dict[int, str] = {}
    rest: list[Operation] = []
    for operation in block.operations:
        if operation.type not in ("feed", "fetch"):
            rest.append(operation)
            continue
        is_feed = operation.type == "feed"
        names = list(operation.writes if is_feed else operation.reads)
        column = operation.attributes.get("col", 0)
        columns = feeds if is_feed else fetches
        if len(names) != 1 or not isinstance(column, int) or column in columns:
            raise InvalidModelError(f"{what}: {operation.type} of column {column}: got {names}, wanted one name each")
        columns[column] = names[0]
    block.operations = rest
    return [(n, n) for _, n in sorted(feeds.items())], [(n, n) for _, n in sorted(fetches.items())]
