"""Types of values: dtype, symbolic dimensions, quantisation parameters; all frozen.  No arrays are computed here.

A dtype is a plain ``np.dtype`` (``ml_dtypes`` adds bfloat16, float8 and 4-bit integers; strings are ``object``).
A dimension is an ``int`` or a `Sym`.  Letters used for sizes everywhere: ``n`` batch, ``c`` in-channels,
``k`` out-channels, ``h w`` input, ``oh ow`` output, ``r s`` filter, ``g`` groups; products ``M N K``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from bolt_numba.base.follow import is_followed
from bolt_numba.base.records import record
from bolt_numba.base.selects import followed_array

Array: TypeAlias = npt.NDArray[Any]
AnyDType: TypeAlias = np.dtype[Any]

F32, F64, F16 = np.dtype("f4"), np.dtype("f8"), np.dtype("f2")
BF16 = np.dtype(ml_dtypes.bfloat16)
I8, I16, I32, I64 = np.dtype("i1"), np.dtype("i2"), np.dtype("i4"), np.dtype("i8")
U8, U16, U32, U64 = np.dtype("u1"), np.dtype("u2"), np.dtype("u4"), np.dtype("u8")
BOOL, STRING = np.dtype("?"), np.dtype("O")

NUMERICS = ("strict", "default", "fast")
"""What a session lets kernels lose of the exactness of a direct sum, the least first; see docs/numerics.md."""

FALLBACKS = ("allow", "warn", "forbid")
"""What a session does where a plug-in fails: compute by itself, say so as well, or raise an error."""

PRECISIONS = ("f32", "bf16", "f16")
"""Of weights and their products, as sessions may be asked for."""
VALUES_WERE = "bolt_numba.precision"
"""Entry of the metadata of an optimised graph that computes in f32 in the place of this narrower dtype."""
FILE_WAS = "file "
"""How an entry of a graph's metadata begins that is the text of a file within the model's, as a list of labels."""
_SPELLINGS = {"fp32": "f32", "fp16": "f16"}


def precision_of(name: Any) -> Any:
    """The one spelling of a precision: "f32" for "fp32", too.  Another name is left as it is."""
    return _SPELLINGS.get(name, name) if isinstance(name, str) else name


_NAMES: dict[AnyDType, str] = {F32: "f32", F64: "f64", F16: "f16", BF16: "bf16", BOOL: "bool", STRING: "string"} | {
    np.dtype(f"{k}{b}"): f"{k}{8 * b}" for k in "iu" for b in (1, 2, 4, 8)
}


def dtype_name(dtype: AnyDType) -> str:
    """Short name: ``f32``, ``i64``, ``bool``…; numpy's name for the rest.  The order of bytes is said where foreign."""
    if dtype.isnative:
        return _NAMES.get(dtype) or dtype.name
    return f"{dtype_name(dtype.newbyteorder('='))} in the byte order of another machine ({dtype.str})"


def dtype_from_name(name: str) -> AnyDType:
    """Inverse of `dtype_name`; raises KeyError for an unknown name."""
    for dtype, short in _NAMES.items():
        if short == name:
            return dtype
    scalar: Any = getattr(ml_dtypes, name, None)
    if not isinstance(scalar, type) or np.dtype(scalar).name != name:
        raise KeyError(name)
    return np.dtype(scalar)


MAX_TERMS = 32
"""Atoms of one `Sym`; a sum of more becomes an atom itself."""
MAX_TEXT = 256
"""Characters of an atom's name; a longer one is named by its digest, so that a product of products stays small."""
_WORD = 1 << 64


def atom_of(text: str) -> str:
    """Name of the atom that stands for an expression."""
    if len(text) <= MAX_TEXT:
        return text
    from bolt_numba.base.digest import sha256  # few models need it

    return f"long_x{sha256(text.encode()).hexdigest()[:32]}"


class Sym:
    """A dimension not known yet: a linear sum of named atoms, kept in canonical form.

    ``Sym("batch") * 2 + 1`` prints as ``2*batch + 1``.  Sums and products with integers stay exact; any other
    expression (a product of symbols, a floor division) becomes a new atom named by its text, or by the text's digest
    where that is long.  Equality is equality of canonical forms, so ``==`` never claims that two different expressions
    are equal.
    """

    __slots__ = ("const", "terms")

    def __init__(self, name: str = "", *, terms: Iterable[tuple[str, int]] | None = None, const: int = 0) -> None:
        self.terms = tuple(sorted(terms)) if terms is not None else ((name, 1),)
        self.const = const

    @staticmethod
    def _make(terms: dict[str, int], const: int) -> Sym | int:
        kept = [(k, v) for k, v in terms.items() if v]
        if not kept:
            return const
        made = Sym(terms=kept, const=const)
        if len(kept) > MAX_TERMS or abs(const) > _WORD or any(abs(v) > _WORD for _, v in kept):
            return Sym(atom_of(f"({made})"))
        return made

    def __add__(self, other: Dim) -> Dim:
        if isinstance(other, Sym):
            total = dict(self.terms)
            for k, v in other.terms:
                total[k] = total.get(k, 0) + v
            return self._make(total, self.const + other.const)
        return Sym(terms=self.terms, const=self.const + int(other))

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + (other * -1)

    def __rsub__(self, other: Dim) -> Dim:
        return (self * -1) + other

    def __mul__(self, other: Dim) -> Dim:
        if isinstance(other, Sym):
            a, b = sorted((str(self), str(other)))
            return Sym(atom_of(f"({a})*({b})"))
        return self._make({k: v * int(other) for k, v in self.terms}, self.const * int(other))

    __rmul__ = __mul__

    @property
    def is_count(self) -> bool:
        """Whether it is not negative, whatever sizes its names stand for."""
        return self.const >= 0 and all(factor > 0 and atom.isidentifier() for atom, factor in self.terms)

    def __floordiv__(self, other: Dim) -> Dim:
        """What a division by 0 gives is as unknown as any other atom."""
        if isinstance(other, Sym):
            return 1 if other == self and self.const and self.is_count else Sym(atom_of(f"({self})//({other})"))
        other = int(other)
        if other == 1:
            return self
        if other and self.const % other == 0 and all(v % other == 0 for _, v in self.terms):
            return self._make({k: v // other for k, v in self.terms}, self.const // other)
        return Sym(atom_of(f"({self})//{other}"))

    def __rfloordiv__(self, other: Dim) -> Dim:
        return Sym(atom_of(f"{other}//({self})"))

    def __mod__(self, other: Dim) -> Dim:
        factors = (self.const, *(factor for _, factor in self.terms))
        if not isinstance(other, Sym) and other and not any(v % int(other) for v in factors):
            return 0
        return Sym(atom_of(f"({self})%({other})"))

    def beside(self, other: Sym) -> Sym:
        """The size of an axis along which these two are broadcast: this one where both are computed of one name."""
        import re  # few models need it

        both = f"{self}|{other}"
        if re.search(r"[()*+]", both):
            mine, theirs = ({*re.split(r"[\s()|*/%+-]+|\b\d+\b", str(dim))} - {""} for dim in (self, other))
            if mine & theirs:
                return self
        return Sym(atom_of("|".join(sorted({*both.split("|")}))))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sym) and self.terms == other.terms and self.const == other.const

    def __hash__(self) -> int:
        return hash((self.terms, self.const))

    def __str__(self) -> str:
        parts = [k if v == 1 else f"{v}*{k}" for k, v in self.terms]
        return " + ".join(parts + ([str(self.const)] if self.const else []))

    def __repr__(self) -> str:
        return f"Sym({str(self)!r})"


Dim: TypeAlias = int | Sym
Shape: TypeAlias = tuple[Dim, ...]


@dataclass(frozen=True, slots=True, eq=False, init=False)
class TensorType:
    """What is known of a value before it is computed.

    shape: None when even the rank is unknown.  value: the content when it is known: an array of ``dtype``, or an
    ``object`` array of int and `Sym` for small integer tensors that hold dimensions.  Equality ignores ``value``.
    is_static: whether all dimensions are known.
    """

    dtype: AnyDType
    shape: Shape | None
    value: Array | None = field(default=None, repr=False)
    is_static: bool = field(init=False, repr=False, default=False)

    def __init__(self, dtype: AnyDType, shape: Shape | None, value: Array | None = None) -> None:
        # Planning makes several types for each node: this is twice as fast as the __init__ of a frozen dataclass.
        _set_dtype(self, dtype)
        _set_shape(self, shape)
        _set_value(self, value)
        _set_static(self, shape is not None and Sym not in map(type, shape))

    @property
    def rank(self) -> int:
        """Number of dimensions; raises ValueError when unknown."""
        if self.shape is None:
            raise ValueError("rank is unknown")
        return len(self.shape)

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape when all of it is known; raises ValueError otherwise."""
        if not self.is_static:
            raise ValueError(f"shape is not static: {self}")
        return self.shape  # type: ignore[return-value]

    @property
    def size(self) -> int:
        """Number of elements of a static type."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes of a static type, stored densely."""
        return math.prod(self.dims) * self.dtype.itemsize

    @property
    def known(self) -> Array | None:
        """The value when it is known completely (no symbols), as an array of ``dtype``, or a followed table."""
        if self.value is None or self.value.dtype == self.dtype:
            return self.value
        if any(isinstance(v, Sym) for v in self.value.flat):
            return None
        if is_followed(list(self.value.flat)):
            made: Array = followed_array(self.value)
            return made
        return self.value.astype(self.dtype)

    def with_shape(self, shape: Sequence[Dim] | None) -> TensorType:
        return TensorType(self.dtype, None if shape is None else tuple(shape))

    def with_value(self, value: Array | None) -> TensorType:
        return TensorType(self.dtype, self.shape, value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorType):
            return NotImplemented
        return (self.dtype, self.shape) == (other.dtype, other.shape)

    def __hash__(self) -> int:
        return hash((self.dtype, self.shape))

    def __str__(self) -> str:
        dims = "?" if self.shape is None else ", ".join(map(str, self.shape))
        return f"{dtype_name(self.dtype)}[{dims}]"


_set_dtype, _set_shape, _set_value, _set_static = (
    TensorType.__dict__[name].__set__ for name in ("dtype", "shape", "value", "is_static")
)


@dataclass(frozen=True, slots=True, eq=False)
class NestedType(TensorType):
    """Base of types whose values are no arrays: dtype object and no shape, so that nobody takes them for tensors."""

    element: TensorType = field(default_factory=lambda: TensorType(STRING, None))

    def with_value(self, value: Array | None) -> NestedType:
        return self

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.element == other.element

    def __hash__(self) -> int:
        return hash((type(self), self.element))


@dataclass(frozen=True, slots=True, eq=False)
class SequenceType(NestedType):
    """A list of values of one type; their shapes may differ.  The value is a Python list."""

    def __str__(self) -> str:
        return f"seq({self.element})"


@dataclass(frozen=True, slots=True, eq=False)
class OptionalType(NestedType):
    """A value of a type, or None."""

    def __str__(self) -> str:
        return f"optional({self.element})"


@dataclass(frozen=True, slots=True, eq=False)
class MapType(NestedType):
    """A dictionary from integers or strings (``key``) to elements."""

    key: AnyDType = I64

    def __str__(self) -> str:
        return f"map({dtype_name(self.key)}, {self.element})"


@record(frozen=True)
class TensorSpec:
    """An input or output of a session: name, dtype, shape (a str for a symbolic dimension).

    nested: the type of what is no tensor, a sequence for example; the dtype is then ``object`` and the shape None.
    """

    name: str
    dtype: AnyDType
    shape: tuple[int | str, ...] | None
    nested: NestedType | None = None


def spec_json(spec: TensorSpec) -> list[Any]:
    """An input or output as JSON has it; what is nested has no such form."""
    return [spec.name, dtype_name(spec.dtype), None if spec.shape is None else list(spec.shape)]


def spec_from_json(row: Sequence[Any]) -> TensorSpec:
    """The same of what `spec_json` gave; raises ValueError, KeyError or TypeError for what it did not give."""
    name, dtype, shape = row
    return TensorSpec(name, dtype_from_name(dtype), None if shape is None else tuple(shape))


_GENERATED = r"(?<![\w.-])(unk__\d+|unknown(_\d+)?|DynamicDimension\.\d+|(\w+_)?dynamic_axes_\d+|\?)(?![\w.-])"
"""Names of sizes that exporters make up, and nobody knows, alone or in a sum."""


def size_name(size: object) -> str:
    """A size as messages and tables show it: one whose name says nothing is "any"."""
    return "any" if isinstance(size, str) and re.search(_GENERATED, size) else str(size)


def sizes_name(shape: Sequence[object]) -> str:
    """A shape as Python writes it: ``(any, 3)``."""
    return f"({', '.join(map(size_name, shape))}{',' if len(shape) == 1 else ''})"


def sequence_of(element: TensorType) -> SequenceType:
    return SequenceType(STRING, None, element=element)


def optional_of(element: TensorType) -> OptionalType:
    return OptionalType(STRING, None, element=element)


def map_of(key: AnyDType, element: TensorType) -> MapType:
    return MapType(STRING, None, element=element, key=key)


def only_in_python(t: TensorType | None) -> bool:
    """Whether values of a type are Python objects, which no buffer can hold: strings, sequences, optionals, maps."""
    return t is not None and t.dtype == STRING


def type_of(array: Array) -> TensorType:
    """Type of a constant array, with its value."""
    return TensorType(array.dtype, array.shape, value=array)
