"""The tables of a native program: what a plan runs, as one flat block that C reads without parsing.

All numbers are little-endian int64.  A *table* is rows of a fixed number of them, an *area* is bytes.  The block begins
at a multiple of `PAGE` of its file, with a header of `HEADER_WORDS` numbers (`HeaderWord`).  Behind these come for each
table, in the order of `ProgramTable`, where it begins (bytes from the beginning of the block) and how many rows it has
(an area: how many bytes).  Tables begin at multiples of `LINE`, the areas of code and data at multiples of `PAGE`.

A file that ends with native programs says in its last 64 bytes where they are (`ir.trailer`).

Places where one table names another are numbers of rows, unless they say bytes.  -1 is "none".  A *string* is its
offset in STRINGS.  This file is the only place that names columns, and the header for C agrees with it.
"""

from __future__ import annotations

from enum import IntEnum

from bolt_numba.ir.trailer import MAGIC as TRAILER_MAGIC
from bolt_numba.ir.trailer import PROGRAMS as TRAILER_PROGRAMS
from bolt_numba.ir.trailer import WORDS as TRAILER_WORDS

VERSION = 4
MAGIC = int.from_bytes(b"BNPROG01", "little")
HEADER_WORDS = 64
PAGE, LINE = 4096, 64
CONTENT = -1
"""In the place of an axis."""


class HeaderWord(IntEnum):
    """Words of the header.

    crc: crc32 of the block from word `FLAGS` on, without the bytes of the table `DATA`.  data_crc: of these.
    flags: a sum of `ProgramFlag`.  level: of the instructions that it needs (a string).
    features: all of these instructions, with commas between, by LLVM's names (a string).  producer: version of
    bolt_numba, name: of the model (strings).  tables: how many there are.
    """

    MAGIC = 0
    VERSION = 1
    BYTES = 2
    CRC = 3
    FLAGS = 4
    LEVEL = 6
    NAME = 7
    PRODUCER = 8
    DATA_CRC = 9
    TABLES = 10
    FEATURES = 11
    FIRST_TABLE = 16


class ProgramFlag(IntEnum):
    """linked: kernels are symbols of a library, there is no code.

    data_apart: the bytes of DATA are not in the block, but linked or in a file of their own; the table says how many
    there are, and begins at 0.
    """

    LINKED = 1
    DATA_APART = 2


class ProgramTable(IntEnum):
    """Tables and areas (STRINGS, CODE, DATA, IMAGES) in the order in which the header has them."""

    STRINGS = 0
    CODE = 1
    KERNELS = 2
    IMPORTS = 3
    DATA = 4
    ARRAYS = 5
    VALUES = 6
    DIMS = 7
    PLANS = 8
    RESULTS = 9
    IMAGES = 10
    STEPS = 11
    PATCHES = 12
    FAULTS = 13
    PLACES = 14
    CHOICES = 15
    NUMBERS = 16
    OPERATIONS = 17
    FINDS = 18
    WRITES = 19


AREAS = frozenset((ProgramTable.STRINGS, ProgramTable.CODE, ProgramTable.DATA, ProgramTable.IMAGES))


class KernelRow(IntEnum):
    """A kernel: ``void f(int64_t params, int64_t part, int64_t parts)``.

    code: where the function begins in CODE, -1 where it is linked.  nbytes: of its code with what it reads.
    first_import, imports: its rows of IMPORTS.
    """

    NAME = 0
    CODE = 1
    NBYTES = 2
    FIRST_IMPORT = 3
    IMPORTS = 4


class ImportRow(IntEnum):
    """A C function that code calls.  slot: offset in CODE of the 8 bytes that take its address."""

    NAME = 0
    SLOT = 1


class ArrayRow(IntEnum):
    """An array: offset of its first element in DATA, and bytes from there on."""

    OFFSET = 0
    NBYTES = 1


class ValueRow(IntEnum):
    """A value that the model takes or gives: first all inputs, then all outputs.

    kind: a `ValueKind`.  dtype: number of ONNX's TensorProto.DataType.  dims: first number of its declared shape in
    DIMS, in which -1 is any size.  source: of a state that is taken, the row of the value that gives it anew.
    first: of such a state, the array that it is at first.
    """

    NAME = 0
    KIND = 1
    DTYPE = 2
    RANK = 3
    DIMS = 4
    SOURCE = 5
    FIRST = 6


class ValueKind(IntEnum):
    """kept: an intermediate value that was asked for.  state_in, state_out: what the model keeps from run to run."""

    INPUT = 0
    OUTPUT = 1
    KEPT = 2
    STATE_IN = 3
    STATE_OUT = 4


class DimRow(IntEnum):
    """A number of a list of sizes."""

    SIZE = 0


class PlanRow(IntEnum):
    """A *stage*: what runs for one set of shapes, or a part of that up to where data decide how it goes on.

    stages: of the first stage of a set of shapes, how many there are with it; the others follow it, and have 0.
    dims: first of the sizes of all values in their order, each as many as its rank says; where data decide sizes, the
    greatest.  image: offset in IMAGES, at a multiple of `LINE`.  fault_counter: index of the int64 of the image that
    counts faults, -1 without any; the record of fault i is the `FAULT_WORDS` int64s from fault_counter +
    `FAULT_WORDS` * (i + 1) on.  threads: how many may share a step, at most.
    first_place, places: of a first stage, what is between its stages.
    choice: the value or place whose number tells how it goes on, -1 where nothing decides.  first_choice, choices: rows
    of CHOICES, one of which is next; none behind the last stage.
    results: of a last stage, the first row of RESULTS; there is one for each output.  sizes: index of the int64 of the
    image where the sizes of all outputs stand, -1 where they are those of dims.
    first_number, numbers: rows of NUMBERS; where there are any, the stage has a *tape* and serves all sizes for which
    that holds.  Those of dims are the greatest then, that of its arena, too.
    first_operation, operations, first_write, writes: rows of OPERATIONS and WRITES of the tape.
    begin: of a first stage, sizes of all inputs with which a session begins, in DIMS.
    """

    DIMS = 0
    IMAGE = 1
    IMAGE_NBYTES = 2
    FIRST_STEP = 3
    STEPS = 4
    FIRST_PATCH = 5
    PATCHES = 6
    FIRST_FAULT = 7
    FAULTS = 8
    FAULT_COUNTER = 9
    RESULTS = 10
    ARENA_NBYTES = 11
    THREADS = 12
    STAGES = 13
    FIRST_PLACE = 14
    PLACES = 15
    CHOICE = 16
    FIRST_CHOICE = 17
    CHOICES = 18
    SIZES = 19
    FIRST_NUMBER = 20
    NUMBERS = 21
    FIRST_OPERATION = 22
    OPERATIONS = 23
    FIRST_WRITE = 24
    WRITES = 25
    BEGIN = 26


class PlaceRow(IntEnum):
    """An array between stages, which is numbered behind the values; places of a set of shapes are its own.

    dims: first number of its greatest shape in DIMS.  length: the value or place whose number is the length of axis,
    -1 where all sizes are fixed.
    """

    DTYPE = 0
    RANK = 1
    DIMS = 2
    LENGTH = 3
    AXIS = 4


class ChoiceRow(IntEnum):
    """Which stage is next, counted from the first: where the number that decides is low to high."""

    LOW = 0
    HIGH = 1
    STAGE = 2


class NumberRow(IntEnum):
    """What a tape is given: a size of an input or place, or the int64 that a place holds, where axis is `CONTENT`."""

    VALUE = 0
    AXIS = 1


class TapeOperation(IntEnum):
    """What an operation does; the first ones are those of `kernels.cpu.tape`, in its order.

    is, is_not: the tape does not hold where a register is 0, or is not.  divisor: the greatest divisor of ``a`` that is
    ``b`` at most.  real: the number as an f64, whose bits are in the register; operations on such ones begin so.
    const: the number ``a``.  find: of the rows of FINDS from ``b`` on, what belongs to the key in register ``a``; the
    tape does not hold where none does.
    """

    ADD = 0
    SUBTRACT = 1
    MULTIPLY = 2
    DIVIDE = 3
    REMAINDER = 4
    GREATEST = 5
    LEAST = 6
    LESS = 7
    LESS_EQUAL = 8
    GREATER = 9
    GREATER_EQUAL = 10
    EQUAL = 11
    NOT_EQUAL = 12
    AND = 13
    OR = 14
    XOR = 15
    SHIFT_LEFT = 16
    SHIFT_RIGHT = 17
    NEGATE = 18
    ABSOLUTE = 19
    NOT = 20
    IS = 21
    IS_NOT = 22
    DIVISOR = 23
    REAL_LESS = 24
    REAL_LESS_EQUAL = 25
    REAL_GREATER = 26
    REAL_GREATER_EQUAL = 27
    REAL_EQUAL = 28
    REAL_NOT_EQUAL = 29
    REAL_ADD = 30
    REAL_SUBTRACT = 31
    REAL_MULTIPLY = 32
    REAL_DIVIDE = 33
    REAL_GREATEST = 34
    REAL_LEAST = 35
    REAL = 36
    CONST = 37
    FIND = 38


class OperationRow(IntEnum):
    """An operation of a tape.  what: a `TapeOperation`.  a, b: registers of its operands.

    Register 0 is 1, then come the numbers of the tape, then the results of its operations in order.
    """

    WHAT = 0
    A = 1
    B = 2


class FindRow(IntEnum):
    """What belongs to the keys first to last: value + slope * (key - first).  rows: of its list, from this one on.

    Lists ascend.  A list is for what nobody computes from sizes in C, such as tables, which are numbers of arrays here.
    """

    FIRST = 0
    LAST = 1
    VALUE = 2
    SLOPE = 3
    ROWS = 4


class WriteRow(IntEnum):
    """What a tape writes into the image.  kind: a `WriteKind`.  at: byte offset.  register: of the number."""

    KIND = 0
    AT = 1
    REGISTER = 2


class WriteKind(IntEnum):
    """How a number is written: as an i64, i32, f32 or f64.

    rounded: the number is an f64, and is written as an f32.  array: as the address of the array of that number, added
    to what the word is.  flag: says of the step ``at``, not in the image, whether threads share it.
    """

    WORD = 0
    HALF = 1
    FLOAT = 2
    DOUBLE = 3
    ROUNDED = 4
    ARRAY = 5
    FLAG = 6


class ResultRow(IntEnum):
    """How an output comes about: kind is a `ResultKind`, which: an input or place by its number, or an array."""

    KIND = 0
    WHICH = 1


class ResultKind(IntEnum):
    """made: by steps, which have its address.  input, array: a copy of that, after the steps."""

    MADE = 0
    INPUT = 1
    ARRAY = 2


class StepRow(IntEnum):
    """A call of a kernel.  record: byte offset of its parameters in the image.  parallel: whether threads share it.

    label: name of the node (a string).
    """

    KERNEL = 0
    RECORD = 1
    PARALLEL = 2
    LABEL = 3


class PatchRow(IntEnum):
    """An address in the image.  kind: a `PatchKind`.  word: index of the int64.  offset: bytes from what is named.

    The word holds 0, or, where a tape writes it, what is added.
    """

    KIND = 0
    WHICH = 1
    WORD = 2
    OFFSET = 3


class PatchKind(IntEnum):
    """What ``which`` is a number of: a kernel, an array, an input or place, an output; nothing for the arena and image.

    Places that a stage writes are counted as outputs, behind them.
    """

    KERNEL = 0
    ARRAY = 1
    ARENA = 2
    IMAGE = 3
    INPUT = 4
    OUTPUT = 5


class FaultRow(IntEnum):
    """What steps refuse in the content of an operand.  label: the node, text: operator and operand (strings).

    dims, rank: shape of the operand, for the place of the element.  word: index of the int64 of the image where that
    stands instead, -1 where it is the one of dims.
    """

    LABEL = 0
    TEXT = 1
    RANK = 2
    DIMS = 3
    WORD = 4


FAULT_WORDS = 8
"""Words of a record of a fault: whether there is one, position, value, low, high, address of the counter."""


class TrailerWord(IntEnum):
    """Words that end a file: the magic number, how many programs there are (at most `TRAILER_PROGRAMS`).

    Behind these come offset in the file and bytes of each.
    """

    MAGIC = 0
    PROGRAMS = 1
    FIRST = 2


COLUMNS: dict[ProgramTable, type[IntEnum]] = {
    ProgramTable.KERNELS: KernelRow,
    ProgramTable.IMPORTS: ImportRow,
    ProgramTable.ARRAYS: ArrayRow,
    ProgramTable.VALUES: ValueRow,
    ProgramTable.DIMS: DimRow,
    ProgramTable.PLANS: PlanRow,
    ProgramTable.RESULTS: ResultRow,
    ProgramTable.STEPS: StepRow,
    ProgramTable.PATCHES: PatchRow,
    ProgramTable.FAULTS: FaultRow,
    ProgramTable.PLACES: PlaceRow,
    ProgramTable.CHOICES: ChoiceRow,
    ProgramTable.NUMBERS: NumberRow,
    ProgramTable.OPERATIONS: OperationRow,
    ProgramTable.FINDS: FindRow,
    ProgramTable.WRITES: WriteRow,
}
"""What the numbers of a row mean, of each table that is no area."""
FUNCTIONS = (
    "memcpy", "memset", "memmove", "memcmp", "rintf", "rint", "nearbyintf", "nearbyint", "roundf", "round", "floorf",
    "floor", "ceilf", "ceil", "truncf", "trunc", "fmodf", "fmod", "powf", "pow", "fmaf", "fma", "expf", "exp", "logf",
    "log", "sinf", "sin", "cosf", "cos", "sched_yield",
)  # fmt: skip
"""C functions that code may call; a program that calls another one is not made."""

__all__ = [
    "AREAS", "COLUMNS", "CONTENT", "FAULT_WORDS", "FUNCTIONS", "HEADER_WORDS", "LINE", "MAGIC", "PAGE", "TRAILER_MAGIC",
    "TRAILER_PROGRAMS", "TRAILER_WORDS", "VERSION", "ArrayRow", "ChoiceRow", "DimRow", "FaultRow", "FindRow",
    "HeaderWord", "ImportRow", "KernelRow", "NumberRow", "OperationRow", "PatchKind", "PatchRow", "PlaceRow",
    "PlanRow", "ProgramFlag", "ProgramTable", "ResultKind", "ResultRow", "StepRow", "TapeOperation", "TrailerWord",
    "ValueKind", "ValueRow", "WriteKind", "WriteRow",
]  # fmt: skip
