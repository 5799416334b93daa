"""SIMD values as words of the kernel language: first-class Numba types over LLVM vectors.

Imported only while a kernel compiles; kernel files import these names from `lang`.  Vectors hold `LANES`
elements whatever the element type.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"
from __future__ import annotations

import operator

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from bolt_numba.kernels.instructions.isa import target

LANES = target().lanes
I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
LLVM = {"f32": ir.FloatType(), "f64": ir.DoubleType(), "i32": I32, "i8": I8, "u8": I8, "i16": I16, "mask": I1}
SCALAR = {"f32": types.float32, "f64": types.float64, "i32": types.int32, "i8": types.int8, "u8": types.uint8}


class Vec(types.Type):
    """`LANES` elements in one register: ``f32`` or ``i32``; ``mask`` holds booleans; of ``f64`` half as many."""

    def __init__(self, elem: str) -> None:
        self.elem = elem
        super().__init__(name=f"Vec({elem}x{LANES})")

    @property
    def llvm(self) -> ir.Type:
        return vector(self.elem)


class RegistersModel(models.PrimitiveModel):
    """Of types that are one LLVM value, ``llvm``."""

    def __init__(self, dmm, fe_type) -> None:
        super().__init__(dmm, fe_type, fe_type.llvm)


register_model(Vec)(RegistersModel)

F32, F64, INT, MASK = Vec("f32"), Vec("f64"), Vec("i32"), Vec("mask")
ADDR = types.int64


def vector(elem: str) -> ir.Type:
    return ir.VectorType(LLVM[elem], LANES // 2 if elem == "f64" else LANES)


def at(b, address, ty, offset=0):
    """Typed pointer to ``address + offset``."""
    if offset:
        address = b.add(address, ir.Constant(address.type, offset))
    return b.inttoptr(address, ty.as_pointer())


def load(b, address, ty, align, offset=0):
    value = b.load(at(b, address, ty, offset))
    value.align = align
    return value


def store(b, value, address, align, offset=0):
    b.store(value, at(b, address, value.type, offset)).align = align


def splat_value(b, x, lanes=0):
    """Vector of equal elements."""
    ty = ir.VectorType(x.type, lanes or LANES)
    one = b.insert_element(ir.Constant(ty, ir.Undefined), x, I32(0))
    return b.shuffle_vector(one, ir.Constant(ty, ir.Undefined), ir.Constant(ir.VectorType(I32, ty.count), None))


def constant(ty, value):
    return ir.Constant(ty, [value] * ty.count)


def call(b, name, result, args):
    """Call an LLVM intrinsic or a C function."""
    fn = cgutils.get_or_insert_function(b.module, ir.FunctionType(result, [a.type for a in args]), name)
    return b.call(fn, args)


def suffix(ty) -> str:
    elem = ty.element
    return f"v{ty.count}" + {"float": "f32", "double": "f64"}.get(str(elem), str(elem))


def fma_value(b, x, y, z):
    """X * y + z, fused where the target has it."""
    name = "fma" if target().has_fma else "fmuladd"
    return call(b, f"llvm.{name}.{suffix(x.type)}", x.type, [x, y, z])


class BFloat(ir.types.Type):
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


def rounded_bits(b, v):
    """Bits of f32 with the nearest bfloat16 (ties to even; NaN stays NaN) in the upper half of each lane."""
    ty = ir.VectorType(I32, v.type.count)
    bits = b.bitcast(v, ty)
    odd = b.and_(b.lshr(bits, constant(ty, 16)), constant(ty, 1))
    rounded = b.add(b.add(bits, constant(ty, 0x7FFF)), odd)
    return b.select(b.fcmp_unordered("uno", v, v), b.or_(bits, constant(ty, 0x400000)), rounded)


def dot_bf16_value(b, acc, x, y):
    """Acc + x.low * y.low + x.high * y.high for vectors of i32 that hold two bfloat16 each."""
    if target().has_bf16:
        pairs = ir.VectorType(BFloat(), 2 * LANES)
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * LANES}"
        return call(b, name, acc.type, [acc, b.bitcast(x, pairs), b.bitcast(y, pairs)])

    def halves(v):
        low, high = b.shl(v, constant(v.type, 16)), b.and_(v, constant(v.type, 0xFFFF0000))
        return b.bitcast(low, acc.type), b.bitcast(high, acc.type)

    (x_low, x_high), (y_low, y_high) = halves(x), halves(y)
    return fma_value(b, x_high, y_high, fma_value(b, x_low, y_low, acc))


def tail_mask(b, n, count=LANES):
    """Lanes below ``n`` (any integer) of ``count``."""
    n = b.select(b.icmp_signed(">", n, n.type(count)), n.type(count), n)
    lanes = ir.Constant(ir.VectorType(I32, count), list(range(count)))
    return b.icmp_signed("<", lanes, splat_value(b, b.trunc(n, I32) if n.type.width > 32 else n, count))


def masked_load(b, address, ty, align, mask, offset=0):
    pointer = at(b, address, ty, offset)
    name = f"llvm.masked.load.{suffix(ty)}.p0"
    return call(b, name, ty, [pointer, I32(align), mask, ir.Constant(ty, None)])


def masked_store(b, value, address, align, mask, offset=0):
    pointer = at(b, address, value.type, offset)
    call(b, f"llvm.masked.store.{suffix(value.type)}.p0", ir.VoidType(), [value, pointer, I32(align), mask])


def hidden(b, n):
    """The same number, unknown to LLVM: LLVM 22 makes a masked byte store whose mask it knows a wider one."""
    return b.asm(ir.FunctionType(n.type, [n.type]), "", "=r,0", [n], side_effect=False)


def named(name, count, body, doc=None):
    """An intrinsic ``name`` of so many operands; Numba looks at how ``body(tyctx, *types)`` is written."""
    names = ", ".join(["tyctx", *(f"a{i}" for i in range(count))])
    scope = {"body": body}
    exec(f"def {name}({names}):\n    return body({names})", scope)
    made = scope[name]
    made.__module__, made.__doc__ = __name__, doc
    return intrinsic(made)


def word(result, *args):
    """Make an intrinsic of fixed types from ``build(b, *values)``."""

    def wrap(build):
        def body(tyctx, *got):
            def codegen(ctx, b, sig, values):
                made = build(b, *values)
                return ctx.get_dummy_value() if result is types.void else made

            return result(*args), codegen

        return named(build.__name__, len(args), body, build.__doc__)

    return wrap


# ------------------------------------------------------------------------------------------------------------- vectors


@intrinsic
def splat(tyctx, x):
    """A vector of equal lanes: f32 for a float, i32 for an integer."""
    elem = "i32" if isinstance(x, types.Integer) else "f32"
    return Vec(elem)(SCALAR[elem]), lambda ctx, b, sig, a: splat_value(b, a[0])


@word(INT)
def iota(b):
    """0, 1, … `LANES` - 1."""
    return ir.Constant(vector("i32"), list(range(LANES)))


@word(MASK, types.int64)
def lanes_below(b, n):
    return tail_mask(b, n)


@word(F64, types.float64)
def splat_f64(b, x):
    return splat_value(b, x, LANES // 2)


@intrinsic
def fma(tyctx, x, y, z):
    """X * y + z of floats."""
    if x not in (F32, F64):
        return None
    return x(x, x, x), lambda ctx, b, sig, a: fma_value(b, *a)


@intrinsic
def select(tyctx, mask, x, y):
    """X where the mask is set, else y."""
    return x(MASK, x, x), lambda ctx, b, sig, a: b.select(*a)


def _binary(name, floats, integers):
    """A two-operand word on f32 or i32 vectors."""

    def body(tyctx, x, y):
        build = floats if x.elem == "f32" else integers
        return x(x, x), lambda ctx, b, sig, a: build(b, *a)

    globals()[name] = named(name, 2, body)


def _llvm_binary(name):
    return lambda b, x, y: call(b, f"llvm.{name}.{suffix(x.type)}", x.type, [x, y])


def minimum_value(b, x, y):
    """The lesser; NaN where one is, and of zeros the negative one: what x86's two minima disagree on, they share."""
    if not target().is_x86:
        return _llvm_binary("minimum")(b, x, y)
    ty = ir.VectorType(I32, x.type.count)
    first, second = (b.select(b.fcmp_ordered("<", u, v), u, v) for u, v in ((x, y), (y, x)))
    return b.bitcast(b.or_(b.bitcast(first, ty), b.bitcast(second, ty)), x.type)


_binary("vmax", lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y), _llvm_binary("smax"))
_binary("vmin", lambda b, x, y: b.select(b.fcmp_ordered("<", x, y), x, y), _llvm_binary("smin"))
_binary("vmaximum", _llvm_binary("maximum"), _llvm_binary("smax"))
_binary("vminimum", minimum_value, _llvm_binary("smin"))


def _unary(name, llvm_name):
    def build(b, x):
        return call(b, f"llvm.{llvm_name}.{suffix(x.type)}", x.type, [x])

    build.__name__ = name
    globals()[name] = word(F32, F32)(build)


for _name, _intrinsic in (
    ("vabs", "fabs"), ("vsqrt", "sqrt"), ("vfloor", "floor"), ("vceil", "ceil"), ("vround", "rint"),
    ("vtrunc", "trunc"),
):  # fmt: skip
    _unary(_name, _intrinsic)


@word(F32, F32, F32)
def copysign(b, x, y):
    return call(b, f"llvm.copysign.{suffix(x.type)}", x.type, [x, y])


@word(INT, F32)
def bits_of(b, x):
    """f32 lanes as i32 bits."""
    return b.bitcast(x, vector("i32"))


@word(F32, INT)
def f32_of_bits(b, x):
    return b.bitcast(x, vector("f32"))


@word(F32, INT)
def to_f32(b, x):
    return b.sitofp(x, vector("f32"))


def whole(b, x, kind):
    """The i32 of each f32 by an instruction of x86, ``cvtt`` or ``cvt``, or that of AArch64 which rounds alike."""
    lanes = x.type.count
    ty = ir.VectorType(I32, lanes)
    if not target().is_x86:
        if kind == "cvt":
            return call(b, f"llvm.aarch64.neon.fcvtns.{suffix(ty)}.{suffix(x.type)}", ty, [x])
        return call(b, f"llvm.fptosi.sat.{suffix(ty)}.{suffix(x.type)}", ty, [x])
    if lanes == 16:
        full = [ir.Constant(ty, None), I16(-1), I32(4)]  # no mask, no other rounding
        return call(b, f"llvm.x86.avx512.mask.{kind}ps2dq.512", ty, [x, *full])
    return call(b, {8: f"llvm.x86.avx.{kind}.ps2dq.256", 4: f"llvm.x86.sse2.{kind}ps2dq"}[lanes], ty, [x])


@word(INT, F32)
def to_i32(b, x):
    """Truncates; what is beyond the range of i32, or NaN, becomes some number (LLVM's own cast leaves it undefined)."""
    return whole(b, x, "cvtt")


@word(INT, F32)
def round_i32(b, x):
    """Rounds to nearest even; what is beyond the range as in `to_i32`."""
    return whole(b, x, "cvt")


@word(INT, F32, F32)
def pair_bf16(b, low, high):
    """Two bfloat16 in each i32: those nearest to ``low`` in the lower half, to ``high`` in the upper one."""
    ty = vector("i32")
    lower = b.lshr(rounded_bits(b, low), constant(ty, 16))
    return b.or_(lower, b.and_(rounded_bits(b, high), constant(ty, 0xFFFF0000)))


@word(INT, INT, INT)
def shift_right_logical(b, x, n):
    return b.lshr(x, n)


@word(types.boolean, MASK)
def any_lane(b, mask):
    return b.icmp_unsigned("!=", b.bitcast(mask, ir.IntType(LANES)), ir.IntType(LANES)(0))


@word(types.boolean, MASK)
def all_lanes(b, mask):
    return b.icmp_unsigned("==", b.bitcast(mask, ir.IntType(LANES)), ir.IntType(LANES)((1 << LANES) - 1))


def fold(b, v, combine):
    """Combine all lanes by a balanced tree; the scalar."""
    width = v.type.count
    while width > 1:
        width //= 2
        index = ir.Constant(ir.VectorType(I32, LANES), [(i + width) % LANES for i in range(LANES)])
        v = combine(b, v, b.shuffle_vector(v, v, index))
    return b.extract_element(v, I32(0))


def _reduction(name, floats, integers):
    def body(tyctx, v):
        build = floats if v.elem == "f32" else integers
        return SCALAR[v.elem](v), lambda ctx, b, sig, a: fold(b, a[0], build)

    globals()[name] = named(name, 1, body)


_reduction("reduce_add", lambda b, x, y: b.fadd(x, y), lambda b, x, y: b.add(x, y))
_reduction("reduce_mul", lambda b, x, y: b.fmul(x, y), lambda b, x, y: b.mul(x, y))
_reduction("reduce_max", _llvm_binary("maximum"), _llvm_binary("smax"))
_reduction("reduce_min", minimum_value, _llvm_binary("smin"))


@intrinsic
def lane(tyctx, v, i):
    """Lane ``i`` as a scalar."""
    return SCALAR[v.elem](v, types.int32), lambda ctx, b, sig, a: b.extract_element(a[0], a[1])


@intrinsic
def with_lane(tyctx, v, i, x):
    """``v`` with lane ``i`` replaced."""
    made = v(v, types.int32, SCALAR[v.elem])
    return made, lambda ctx, b, sig, a: b.insert_element(a[0], a[2], a[1])


@word(F32, F32, INT)
def permute(b, v, index):
    """Lane i is lane ``index[i]`` of ``v``."""
    if target().name == "avx512":
        return call(b, "llvm.x86.avx512.permvar.sf.512", vector("f32"), [v, index])
    if target().name == "avx2":
        return call(b, "llvm.x86.avx2.permps", vector("f32"), [v, index])
    if not target().is_x86:  # bytes are looked up: 4 i, 4 i + 1, 4 i + 2, 4 i + 3
        ty, narrow = vector("i32"), ir.VectorType(I8, 4 * LANES)
        places = b.add(b.mul(index, constant(ty, 0x04040404)), constant(ty, 0x03020100))
        found = call(b, "llvm.aarch64.neon.tbl1.v16i8", narrow, [b.bitcast(v, narrow), b.bitcast(places, narrow)])
        return b.bitcast(found, vector("f32"))
    out = ir.Constant(vector("f32"), ir.Undefined)
    for i in range(LANES):
        out = b.insert_element(out, b.extract_element(v, b.extract_element(index, I32(i))), I32(i))
    return out


def _shuffle(name, pick):
    """A word of two vectors whose lanes are ``pick(i)`` of their concatenation."""

    def body(tyctx, x, y):
        index = ir.Constant(ir.VectorType(I32, LANES), [pick(i) for i in range(LANES)])
        return x(x, x), lambda ctx, b, sig, a: b.shuffle_vector(a[0], a[1], index)

    globals()[name] = named(name, 2, body)


_shuffle("interleave_low", lambda i: i // 2 + (i % 2) * LANES)
_shuffle("interleave_high", lambda i: LANES // 2 + i // 2 + (i % 2) * LANES)
_shuffle("even_lanes", lambda i: 2 * i)
_shuffle("odd_lanes", lambda i: 2 * i + 1)


# ----------------------------------------------------------------------------------------------------------- operators


def _operator(symbol, result_of, floats, integers, masks=None):
    """Define a binary operator on vectors and between a vector and a number; f64 are not compared."""

    def builders(vec):
        return {"mask": masks, "i32": integers}.get(vec.elem, floats)

    class Typing(AbstractTemplate):
        key = symbol

        def generic(self, args, kws):
            vec = next((a for a in args if isinstance(a, Vec)), None)
            if vec is None or len(args) != 2 or kws:
                return None
            build = builders(vec)
            if build is None or (vec.elem == "f64" and result_of is not _same):
                return None
            if not all(a == vec or (isinstance(a, types.Number) and vec.elem != "mask") for a in args):
                return None
            plain = [a if a == vec else SCALAR[vec.elem] for a in args]
            return signature(result_of(vec), *plain)

    def lower(ctx, b, sig, args):
        vec = next(a for a in sig.args if isinstance(a, Vec))
        x, y = (v if t == vec else splat_value(b, v, vec.llvm.count) for t, v in zip(sig.args, args, strict=True))
        return builders(vec)(b, x, y)

    infer_global(symbol)(Typing)
    for left, right in ((Vec, Vec), (Vec, types.Number), (types.Number, Vec)):
        lower_builtin(symbol, left, right)(lower)


def _same(vec):
    return vec


_operator(operator.add, _same, lambda b, x, y: b.fadd(x, y), lambda b, x, y: b.add(x, y))
_operator(operator.sub, _same, lambda b, x, y: b.fsub(x, y), lambda b, x, y: b.sub(x, y))
_operator(operator.mul, _same, lambda b, x, y: b.fmul(x, y), lambda b, x, y: b.mul(x, y))
_operator(operator.truediv, _same, lambda b, x, y: b.fdiv(x, y), None)
_operator(operator.and_, _same, None, lambda b, x, y: b.and_(x, y), lambda b, x, y: b.and_(x, y))
_operator(operator.or_, _same, None, lambda b, x, y: b.or_(x, y), lambda b, x, y: b.or_(x, y))
_operator(operator.xor, _same, None, lambda b, x, y: b.xor(x, y), lambda b, x, y: b.xor(x, y))
_operator(operator.lshift, _same, None, lambda b, x, y: b.shl(x, y))
_operator(operator.rshift, _same, None, lambda b, x, y: b.ashr(x, y))


def _comparison(symbol, sign):
    compare = (lambda b, x, y: b.fcmp_unordered(sign, x, y)) if sign == "!=" else (
        lambda b, x, y: b.fcmp_ordered(sign, x, y))  # fmt: skip
    _operator(symbol, lambda vec: MASK, compare, lambda b, x, y: b.icmp_signed(sign, x, y))


for _symbol, _sign in ((operator.lt, "<"), (operator.le, "<="), (operator.gt, ">"), (operator.ge, ">="),
                       (operator.eq, "=="), (operator.ne, "!=")):  # fmt: skip
    _comparison(_symbol, _sign)


def _unary_operator(symbol, kinds):
    class Typing(AbstractTemplate):
        key = symbol

        def generic(self, args, kws):
            if len(args) == 1 and isinstance(args[0], Vec) and args[0].elem in kinds:
                return signature(args[0], args[0])
            return None

    infer_global(symbol)(Typing)

    @lower_builtin(symbol, Vec)
    def lower(ctx, b, sig, args):
        return kinds[sig.args[0].elem](b, args[0])


_unary_operator(operator.neg, {**dict.fromkeys(("f32", "f64"), lambda b, x: b.fneg(x)), "i32": lambda b, x: b.neg(x)})
_unary_operator(operator.invert, {"i32": lambda b, x: b.not_(x), "mask": lambda b, x: b.not_(x)})
