"""The JSON of Paddle 3 (PIR) to a `PaddleProgram`.  Keys of the file are short: see `_PirParser`.

``#`` type or number, ``%`` value, ``I`` operands, ``O`` results, ``TT`` type, ``A`` attributes (``N`` name, ``AT``
content, ``D`` data), ``regions`` of control flow.  Types have the number of their dialect: 0 builtin, 1 Paddle's
operators, 2 control flow.  Parameters are operations of type ``p``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from bolt_numba.base.errors import InvalidModelError, UnsupportedOpError
from bolt_numba.base.types import TensorType
from bolt_numba.converters.bounded import MAX_DEPTH
from bolt_numba.converters.paddle.reading.program import PIR, Operation, PaddleBlock, PaddleProgram, Variable
from bolt_numba.converters.paddle.types import NAMED, dtype_of_tag, shape_of

_DIALECTS = ("0.", "1.", "2.")
_CHANGED = {"assign_out_": 1}
"""Which operand an operation works on in place, where it is not the first."""
_UNCHANGED = ("batch_norm_", "sync_batch_norm_")
"""Operations that change their operands in training alone."""
MAX_LISTED = 1 << 20
"""Elements of all lists of tensors that a file combines: lists of lists may double at each step."""
VERSIONS = range(1, 5)
"""Versions of the format that are known."""


def parse_pir(data: bytes | memoryview, what: str) -> PaddleProgram:
    """The program of a file.  Raises InvalidModelError for what is no JSON, or no program of PIR."""
    try:
        found = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise InvalidModelError(f"{what}: got no JSON ({error}), wanted a program of PIR") from error
    try:
        return _PirParser(what).program(found)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InvalidModelError(f"{what}: got JSON that is no program of PIR ({reason}), wanted one") from error


class _PirParser:
    """Parses one file.

    vectors: names of the elements of lists of tensors.  same: a name -> the name it stands for.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.vectors: dict[str, tuple[str, ...]] = {}
        self.same: dict[str, str] = {}
        self.variables: dict[str, Variable] = {}
        self.feeds: list[tuple[str, str]] = []
        self.fetches: dict[int, tuple[str, str]] = {}
        self.empty: list[str] = []
        self.weights: list[tuple[str, str]] = []
        self.elements_left = MAX_LISTED

    def program(self, found: dict[str, Any]) -> PaddleProgram:
        base = found["base_code"]
        if base["magic"] != "pir" or base["version"] not in VERSIONS:
            got = f"{base['magic']!r} of version {base['version']}"
            raise InvalidModelError(f"{self.what}: got {got}, wanted 'pir' of version up to {VERSIONS[-1]}")
        (region,) = found["program"]["regions"]
        (block,) = region["blocks"]
        made = self.block(block, 0)
        made.variables = self.variables
        fetches = [pair for _, pair in sorted(self.fetches.items())]
        return PaddleProgram(PIR, [made], self.feeds, fetches, sorted(self.weights), base["version"], self.empty)

    def block(self, found: dict[str, Any], depth: int) -> PaddleBlock:
        if depth > MAX_DEPTH:
            raise InvalidModelError(f"{self.what}: got regions nested {depth} deep, wanted at most {MAX_DEPTH}")
        made = PaddleBlock([])
        for argument in found.get("args", ()):
            made.arguments.append(self.result({"%": argument["#"], "TT": argument["TT"]})[0])
        for operation in found["ops"]:
            self.operation(operation, made, depth)
        return made

    def name(self, number: Any) -> str:
        """What a value is called; "" for one that is omitted."""
        if not isinstance(number, int):
            raise TypeError(f"value {number!r}")
        made = f"value_{number}" if number > 0 else f"argument_{-number}"
        return self.same.get(made, made) if number else ""

    def operation(self, found: dict[str, Any], block: PaddleBlock, depth: int) -> None:
        """Add an operation to its block, or note what it says of names."""
        tag = found["#"]
        if tag == "p":
            self.parameter(found)
            return
        operands = [self.operand(o["%"]) for o in found["I"]]
        if tag in ("0.combine", "0.split", "0.slice"):
            self.elements(tag, found, operands)
            return
        attributes = {a["N"]: self.value(a["AT"]) for a in found.get("A", ())}
        results = [("", self.result(o)) for o in found["O"]]
        if tag == "1.data":
            name = str(attributes["name"])
            self.feeds.append((name, results[0][1][0]))
        elif tag == "1.fetch":
            self.fetches[int(attributes["col"])] = str(attributes["name"]), operands[0][0]
        elif tag == "2.yield":
            block.results = [name for names in operands for name in names]
        else:
            regions = [r["blocks"] for r in found.get("regions", ())]
            inner = tuple(self.block(b, depth + 1) for (b,) in regions)
            plain = tag[2:] if tag.startswith(_DIALECTS) else tag
            slots = ["*" if self.is_vector(o["%"]) else "" for o in found["I"]]
            inputs = list(zip(slots, operands, strict=True))
            if plain == "while":
                inputs = [*inputs[:1], ("*", tuple(name for names in operands[1:] for name in names))]
            changed = _changed(plain, operands, inner)
            made = Operation(plain, inputs, results, attributes, blocks=inner, changed=changed)
            block.operations.append(made)

    def parameter(self, found: dict[str, Any]) -> None:
        name = self.result(found["O"])[0]
        if found.get("OA", (1,))[0]:  # else it is nothing that a run reads
            self.weights.append((str(found["A"][3]), name))
            self.variables[name].is_kept = True
        else:
            self.empty.append(name)

    def operand(self, number: Any) -> tuple[str, ...]:
        name = self.name(number)
        return self.vectors.get(name, (name,))

    def is_vector(self, number: Any) -> bool:
        return self.name(number) in self.vectors

    def elements(self, tag: str, found: dict[str, Any], operands: Sequence[tuple[str, ...]]) -> None:
        """The builtin operations of lists of tensors: they make, take apart, or take one of them."""
        if tag == "0.combine":
            self.elements_left -= sum(map(len, operands))
            if self.elements_left < 0:
                raise InvalidModelError(f"{self.what}: got lists of lists of tensors that grow, wanted fewer elements")
            self.vectors[self.name(found["O"][0]["%"])] = tuple(name for names in operands for name in names)
            return
        names = operands[0]
        if tag == "0.slice":
            place = next(a["AT"]["D"] for a in found["A"] if a["N"] == "index")
            names = names[place : place + 1]
        for made, name in zip(found["O"], names, strict=True):
            self.same[self.name(made["%"])] = name

    def result(self, found: dict[str, Any]) -> tuple[str, ...]:
        """Names of a result: one, or those of the elements of a list."""
        name, kind = self.name(found["%"]), found["TT"]
        if kind is None or kind.get("#") in (None, "NULL"):
            return (name,)
        if kind["#"] == "0.t_vec":
            names = tuple(f"{name}.{i}" for i in range(len(kind["D"])))
            self.vectors[name] = names
            for element, inner in zip(names, kind["D"], strict=True):
                self.declare(element, inner)
            return names
        self.declare(name, kind)
        return (name,)

    def declare(self, name: str, kind: dict[str, Any]) -> None:
        is_array = kind["#"] == "1.t_dense_tensor_array"
        type: TensorType | None = None
        if is_array or kind["#"] == "0.t_dtensor":
            what = f"{self.what}: '{name}'"
            try:
                dtype = dtype_of_tag(kind["D"][0]["#"], what)
            except UnsupportedOpError:
                pass
            else:
                type = TensorType(dtype, shape_of((max(d, -1) for d in kind["D"][1]), name, what))
        self.variables[name] = Variable(type, is_array=is_array)

    def value(self, found: dict[str, Any]) -> Any:
        """The content of an attribute; a dtype as a dtype, None for one that is open."""
        tag = found["#"]
        if "VD" in found:
            return float(found["VD"])
        data = found.get("D")
        if tag == "0.a_array":
            return tuple(self.value(v) for v in data or ())
        if tag == "1.a_intarray":
            return tuple(int(v) for v in data or ())
        if tag == "1.a_dtype":
            return NAMED.get(str(data))
        if tag in ("0.a_f32", "0.a_f64"):
            return math.nan if data is None else float(data)
        if tag in ("0.a_i32", "0.a_i64", "0.a_index"):
            return int(data or 0)
        return data


def _changed(type: str, operands: Sequence[tuple[str, ...]], blocks: Sequence[PaddleBlock]) -> tuple[str, ...]:
    """Names whose content an operation changes: one that ends in "_" works in place, regions reach what is outside."""
    names = operands[_CHANGED.get(type, 0)][:1] if type.endswith("_") and type not in _UNCHANGED and operands else ()
    for block in blocks:
        own = {name for operation in block.operations for name in operation.writes}.union(block.arguments)
        names += tuple(name for operation in block.operations for name in operation.changed if name not in own)
    return tuple(dict.fromkeys(name for name in names if name))
