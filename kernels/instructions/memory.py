"""Raw memory and threads as words of the kernel language: loads, stores, views, atomics, calls.

Imported only while a kernel compiles; kernel files import these names from `lang`.  An address is an
integer (bytes).
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"
from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.instructions.simd import (
    ADDR,
    F32,
    F64,
    I1,
    I8,
    I16,
    I32,
    I64,
    INT,
    LANES,
    MASK,
    at,
    call,
    constant,
    hidden,
    load,
    masked_load,
    masked_store,
    splat_value,
    store,
    suffix,
    tail_mask,
    vector,
    word,
)  # fmt: skip


def _define_scalar(name, numba_type, llvm_type, size):
    def loader(b, address):
        return load(b, address, llvm_type, size)

    def storer(b, address, value):
        store(b, value, address, size)

    loader.__name__, storer.__name__ = f"load_{name}", f"store_{name}"
    globals()[f"load_{name}"] = word(numba_type, ADDR)(loader)
    globals()[f"store_{name}"] = word(types.void, ADDR, numba_type)(storer)


for _name, _numba, _llvm, _size in (
    ("f32", types.float32, ir.FloatType(), 4), ("f64", types.float64, ir.DoubleType(), 8),
    ("i8", types.int8, I8, 1), ("u8", types.uint8, I8, 1), ("i16", types.int16, I16, 2), ("u16", types.uint16, I16, 2),
    ("i32", types.int32, I32, 4), ("u32", types.uint32, I32, 4), ("i64", types.int64, I64, 8),
):  # fmt: skip
    _define_scalar(_name, _numba, _llvm, _size)


@word(F64, ADDR)
def vload_f64(b, address):
    """``LANES / 2`` f64 at any alignment."""
    return load(b, address, vector("f64"), 4)


@word(F64, ADDR)
def vload_widened(b, address):
    """``LANES / 2`` f32 as f64."""
    return b.fpext(load(b, address, ir.VectorType(ir.FloatType(), LANES // 2), 4), vector("f64"))


@word(types.void, ADDR, F64)
def vstore_narrowed(b, address, v):
    """``LANES / 2`` f64 as f32."""
    store(b, b.fptrunc(v, ir.VectorType(ir.FloatType(), LANES // 2)), address, 4)


@word(F32, ADDR, MASK)
def vload_m(b, address, mask):
    return masked_load(b, address, vector("f32"), 4, mask)


def loads(name, result, elem, widen):
    """Words for vectors of any alignment, ``widen(b, v)`` of `LANES` elements: of all, and of the first ``n``.

    Other lanes are 0 then and their memory is not touched.
    """
    unit = UNITS[elem]

    def all_lanes(b, address):
        return widen(b, load(b, address, vector(elem), unit))

    def some(b, address, n):
        return widen(b, masked_load(b, address, vector(elem), unit, tail_mask(b, n)))

    all_lanes.__name__, some.__name__ = name, f"{name}_n"
    return {name: word(result, ADDR)(all_lanes), f"{name}_n": word(result, ADDR, types.int64)(some)}


def stores(name, kind, elem, narrow=None):
    """Words that store vectors of ``kind`` as `LANES` elements ``narrow(b, v)``: all, and the first ``n``.

    narrow: None for the low bits of each lane.
    """
    unit, narrow = UNITS[elem], narrow or (lambda b, v: b.trunc(v, vector(elem)))

    def all_lanes(b, address, v):
        store(b, narrow(b, v), address, unit)

    def some(b, address, v, n):
        n = hidden(b, n)
        masked_store(b, narrow(b, v), address, unit, tail_mask(b, n))

    all_lanes.__name__, some.__name__ = name, f"{name}_n"
    return {name: word(types.void, ADDR, kind)(all_lanes), f"{name}_n": word(types.void, ADDR, kind, types.int64)(some)}


UNITS = {"f32": 4, "i32": 4, "i16": 2, "i8": 1, "u8": 1}
"""Bytes of elements."""

globals().update(loads("vload", F32, "f32", lambda b, v: v))
globals().update(loads("vload_i32", INT, "i32", lambda b, v: v))
for _name, _elem in (("u8", "u8"), ("u16", "i16")):  # widened to i32
    globals().update(loads(f"vload_{_name}", INT, _elem, lambda b, v: b.zext(v, vector("i32"))))
    globals().update(stores(f"vstore_{_name}", INT, _elem))
for _elem in ("i8", "i16"):
    globals().update(loads(f"vload_{_elem}", INT, _elem, lambda b, v: b.sext(v, vector("i32"))))


@intrinsic
def vstore(tyctx, address, v):
    """Store all lanes of a vector."""
    return types.void(ADDR, v), lambda ctx, b, sig, a: (store(b, a[1], a[0], 4), ctx.get_dummy_value())[1]


@intrinsic
def vstore_n(tyctx, address, v, n):
    """Store the first ``n`` lanes; other memory is not touched."""

    def codegen(ctx, b, sig, a):
        masked_store(b, a[1], a[0], 4, tail_mask(b, a[2]))
        return ctx.get_dummy_value()

    return types.void(ADDR, v, types.int64), codegen


@intrinsic
def vstore_m(tyctx, address, v, mask):
    def codegen(ctx, b, sig, a):
        masked_store(b, a[1], a[0], 4, a[2])
        return ctx.get_dummy_value()

    return types.void(ADDR, v, MASK), codegen


@word(F32, ADDR, INT)
def vgather(b, address, index):
    """f32 at ``address + 4 * index`` for each lane."""
    wide = ir.VectorType(I64, LANES)
    places = b.add(splat_value(b, address), b.shl(b.sext(index, wide), constant(wide, 2)))
    pointers = b.inttoptr(places, ir.VectorType(ir.FloatType().as_pointer(), LANES))
    ones = ir.Constant(vector("mask"), [1] * LANES)
    name = f"llvm.masked.gather.{suffix(vector('f32'))}.v{LANES}p0"
    return call(b, name, vector("f32"), [pointers, I32(4), ones, ir.Constant(vector("f32"), None)])


@intrinsic
def address_of(tyctx, record):
    """Address of a parameter record."""
    return types.int64(record), lambda ctx, b, sig, a: b.ptrtoint(a[0], I64)


@intrinsic
def view(tyctx, address, shape, dtype):
    """A C-contiguous array over raw memory: ``view(p.x, (n, m), np.float32)``; shape may be one integer."""
    rank = len(shape) if isinstance(shape, types.BaseTuple) else 1
    array = types.Array(dtype.dtype, rank, "C")
    want = types.UniTuple(types.int64, rank) if isinstance(shape, types.BaseTuple) else types.int64

    def codegen(ctx, b, sig, args):
        sizes = cgutils.unpack_tuple(b, args[1], rank) if isinstance(want, types.UniTuple) else [args[1]]
        item = ctx.get_abi_sizeof(ctx.get_data_type(array.dtype))
        strides: list[ir.Value] = []
        step = I64(item)
        for size in reversed(sizes):
            strides.insert(0, step)
            step = b.mul(step, size)
        out = make_array(array)(ctx, b)
        data = b.inttoptr(args[0], ctx.get_data_type(array.dtype).as_pointer())
        populate_array(out, data=data, shape=sizes, strides=strides, itemsize=I64(item), meminfo=None, parent=None)
        return out._getvalue()

    return array(types.int64, want, dtype), codegen


def _define_prefetch(name, write, locality):
    def ask(b, address):
        """Ask for the cache line of an address."""
        pointer = b.inttoptr(address, I8.as_pointer())
        call(b, "llvm.prefetch.p0", ir.VoidType(), [pointer, I32(write), I32(locality), I32(1)])

    ask.__name__ = name
    globals()[name] = word(types.void, ADDR)(ask)


_define_prefetch("prefetch", 0, 3)
_define_prefetch("prefetch_second", 0, 2)  # not for a place in the first-level cache
_define_prefetch("prefetch_write", 1, 3)  # it will be written


@word(types.void, ADDR, ADDR, types.int64, types.int64)
def call_kernel(b, address, params, tid, nthreads):
    """Call machine code of the kernel ABI."""
    kind = ir.FunctionType(ir.VoidType(), [I64, I64, I64])
    b.call(b.inttoptr(address, kind.as_pointer()), [params, tid, nthreads])


@word(types.void, ADDR, ADDR, types.int64, types.int64)
def call_activation(b, act, tile, size, pitch):
    """Call the function that a record of `kernels.cpu.products.epilogue` names, on a tile."""
    kind = ir.FunctionType(ir.VoidType(), [I64, I64, I64, I64])
    b.call(b.inttoptr(b.load(at(b, act, I64)), kind.as_pointer()), [act, tile, size, pitch])


@word(types.int64, ADDR, types.int64)
def atomic_add(b, address, value):
    """Add to an i64; the value before.  As all words here, in one order for all threads: weak memory has fences."""
    return b.atomic_rmw("add", at(b, address, I64), value, "seq_cst")


@word(types.int64, ADDR)
def atomic_load(b, address):
    return b.load_atomic(at(b, address, I64), "seq_cst", 8)


@word(types.void, ADDR, types.int64)
def atomic_store(b, address, value):
    b.store_atomic(value, at(b, address, I64), "seq_cst", 8)


@word(types.boolean, ADDR, types.int64, types.int64)
def atomic_compare_exchange(b, address, expected, value):
    """Store ``value`` if the i64 is ``expected``; whether it was."""
    return b.extract_value(b.cmpxchg(at(b, address, I64), expected, value, "seq_cst", "seq_cst"), 1)


@word(types.void)
def spin_pause(b):
    """Tell the core that this is a spin loop; on AArch64 ``isb`` takes about as long as x86's ``pause``."""
    if target().is_x86:
        call(b, "llvm.x86.sse2.pause", ir.VoidType(), [])
    else:
        call(b, "llvm.aarch64.isb", ir.VoidType(), [I32(15)])


@word(types.uint64)
def cycles(b):
    """The time-stamp counter; on AArch64 that of the system, as programs may not read the processor's."""
    if target().is_x86:
        return call(b, "llvm.readcyclecounter", I64, [])
    register = b.module.add_metadata([ir.MetaDataString(b.module, "cntvct_el0")])
    return call(b, "llvm.read_volatile_register.i64", I64, [register])


@word(types.int32)
def float_control(b):
    """The thread's floating-point control and status word (MXCSR on x86, elsewhere 0)."""
    if not target().is_x86:
        return I32(0)
    place = cgutils.alloca_once(b, I32)
    call(b, "llvm.x86.sse.stmxcsr", ir.VoidType(), [b.bitcast(place, I8.as_pointer())])
    return b.load(place)


@word(types.void, types.int32)
def set_float_control(b, value):
    """Set that word; on other processors nothing."""
    if target().is_x86:
        place = cgutils.alloca_once_value(b, value)
        call(b, "llvm.x86.sse.ldmxcsr", ir.VoidType(), [b.bitcast(place, I8.as_pointer())])


def _define_call(name, *args):
    """A word that is a C function which gives an int."""

    def made(b, *values):
        return call(b, name, I32, list(values))

    made.__name__ = name
    globals()[name] = word(types.int32, *args)(made)


for _name in ("sem_wait", "sem_trywait", "sem_post"):
    _define_call(_name, ADDR)
_define_call("sched_yield")


@word(types.void, ADDR, ADDR, types.int64)
def copy_bytes(b, to, source, nbytes):
    """Memcpy."""
    pointers = [b.inttoptr(x, I8.as_pointer()) for x in (to, source)]
    call(b, "llvm.memcpy.p0.p0.i64", ir.VoidType(), [*pointers, nbytes, I1(0)])


@word(types.void, ADDR, types.uint8, types.int64)
def fill_bytes(b, to, value, nbytes):
    """Memset."""
    call(b, "llvm.memset.p0.i64", ir.VoidType(), [b.inttoptr(to, I8.as_pointer()), value, nbytes, I1(0)])
