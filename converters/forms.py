"""What the specification of a node says of the shapes of its operands together, held against what they have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bolt_numba.base.types import AnyDType, Shape, dtype_name
from bolt_numba.ir.graph import Value

if TYPE_CHECKING:
    from bolt_numba.converters.builder import ForeignBuilder


class Forms:
    """Names of sizes in which operands must agree: ``want("rows", x, "n k", F32)``, then ``want("bias", c, "k", F32)``.

    known: sizes that attributes say.  Sizes that only the run tells agree with all others here.
    """

    def __init__(self, b: ForeignBuilder, **known: Any) -> None:
        self._b, self.known = b, known

    def want(self, what: str, x: Value | None, shapes: str, *dtypes: AnyDType) -> None:
        """Raise InvalidModelError unless an operand has one of these dtypes, and a shape of names and numbers.

        shapes: ``n k``, ``... k`` for any axes before the last, or several by ``|``.  No operand is right.
        """
        if x is None:
            return
        forms, shape = [form.split() for form in shapes.split("|")], x.type.shape
        fits = shape is None or any(self._fits(shape, form) for form in forms)
        if x.type.dtype not in dtypes or not fits:
            texts = [", ".join(str(self.known.get(name, name)) for name in form) for form in forms]
            kinds = "/".join(map(dtype_name, dtypes))
            raise self._b.invalid(what, x.type, " or ".join(f"{kinds}[{text}]" for text in texts))

    def _fits(self, shape: Shape, form: list[str]) -> bool:
        """Whether a shape is that of the names, which mean its sizes from now on if it is."""
        if form[:1] == ["..."]:
            form = form[1:]
            shape = shape[-len(form) :] if len(shape) >= len(form) else ()
        if len(shape) != len(form):
            return False
        wanted = [int(name) if name.isdigit() else self.known.get(name) for name in form]
        if any(isinstance(d, int) and isinstance(w, int) and d != w for d, w in zip(shape, wanted, strict=True)):
            return False
        self.known.update({n: d for n, d, w in zip(form, shape, wanted, strict=True) if not isinstance(w, int)})
        return True
