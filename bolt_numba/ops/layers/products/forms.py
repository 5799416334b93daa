"""How GGUF files store weights of a few bits: the layout of each form, and what its bytes mean.

A row of weights is cut into blocks.  A block holds codes of 2 to 8 bits, whose bits lie in one or two *planes*.  Every
group of weights has a scale, and in some forms an offset: weight = code * scale + offset.  Forms with K in their names
have a factor for each group, and one scale for a block.
Source: the format of GGML (https://github.com/ggml-org/ggml), quantised types.
"""

from __future__ import annotations

import functools
from typing import TypeAlias

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import BF16, F16, F32, AnyDType, Array

_SIGN = np.uint8(128)


@record(frozen=True)
class Plane:
    """Some bits of each number of a block: those of number i are ``bits`` bits of byte ``places[i]``, shifted down."""

    bits: int
    places: tuple[int, ...]
    shifts: tuple[int, ...]


Planes: TypeAlias = tuple[Plane, ...]
"""Low bits first.  A plane of 8 bits is of signed numbers, which are read as 128 more."""


def _plane(bits: int, at: int, count: int, span: int) -> Plane:
    """``count`` numbers from byte ``at`` on.

    ``span`` bytes hold the lowest bits of the first ``span`` numbers, then the next bits of those behind, and so on.
    """
    places, shifts = [], []
    for i in range(count):
        part, i = divmod(i, span * 8 // bits)
        places.append(at + part * span + i % span)
        shifts.append(i // span * bits)
    return Plane(bits, tuple(places), tuple(shifts))


@functools.cache
def _runs(plane: Plane) -> list[tuple[int, int, int, int]]:
    """Numbers whose bytes follow each other: the first one, its byte, its shift, how many."""
    found: list[tuple[int, int, int, int]] = []
    for i, (at, shift) in enumerate(zip(plane.places, plane.shifts, strict=True)):
        first, start, same, count = found[-1] if found else (0, 0, -1, 0)
        if same == shift and at == start + count:
            found[-1] = (first, start, same, count + 1)
        else:
            found.append((i, at, shift, 1))
    return found


def _bit_by_bit(at: int) -> Plane:
    """32 bits in order."""
    return Plane(1, tuple(at + i // 8 for i in range(32)), tuple(i % 8 for i in range(32)))


@record(frozen=True)
class Form:
    """One way to store weights.

    bits: of a code · block, size: weights and bytes of a block · group: weights that share a scale ·
    middle: the code that means 0, or None where groups have offsets · scale, offset: where in a block these f16 lie ·
    factors, offset_factors: what they are multiplied by for each group, scales by the factor less ``less``, offsets by
    the negative one; () where a block is one group · plain: the dtype of weights that are numbers, one a block ·
    table: what codes of 4 bits stand for, of which ``middle`` means 0 · power: whether the scale is a byte, see
    `halved_powers`.
    """

    bits: int
    block: int
    size: int
    group: int
    codes: Planes
    scale: int
    middle: int | None = None
    offset: int = 0
    factors: Planes = ()
    less: int = 0
    offset_factors: Planes = ()
    plain: AnyDType | None = None
    table: tuple[int, ...] = ()
    power: bool = False

    def blocks(self, raw: Array) -> Array:
        """[n, bytes] -> [n, blocks, size]."""
        return raw.reshape(len(raw), raw.shape[1] // self.size, self.size)

    def halves(self, raw: Array, at: int) -> Array:
        """The f16 at byte ``at`` of each block of ``raw`` u8 [n, bytes]: f32 [n, blocks, 1]."""
        return np.ascontiguousarray(self.blocks(raw)[..., at : at + 2]).view(np.float16).astype(np.float32)

    def scales(self, raw: Array) -> Array:
        """Of each block: f32 [n, blocks, 1]."""
        return (
            halved_powers(self.blocks(raw)[..., self.scale :][..., :1]) if self.power else self.halves(raw, self.scale)
        )

    def numbers(self, raw: Array, planes: Planes) -> Array:
        """What ``planes`` hold of each block of ``raw`` u8 [n, bytes]: u8 [n, blocks, numbers]."""
        blocks, place = self.blocks(raw), 0
        made = np.zeros((*blocks.shape[:2], len(planes[0].places)), np.uint8)
        for plane in planes:
            mask = np.uint8((1 << plane.bits) - 1)
            for i, at, shift, count in _runs(plane):
                some = blocks[..., at : at + count] >> np.uint8(shift) & mask
                made[..., i : i + count] |= some << np.uint8(place)
            place += plane.bits
        return made ^ _SIGN if place == 8 else made

    def parts(self, raw: Array) -> tuple[Array, Array, Array]:
        """Raw u8 [n, bytes] -> codes u8 [n, k], scales and offsets f32 [n, k / group].

        All products and sums are exact in f32 but the last, ``code * scale + offset`` of forms without a middle.
        """
        scales = self.scales(raw)
        if self.factors:
            scales = scales * (self.numbers(raw, self.factors).astype(np.float32) - np.float32(self.less))
        if self.middle is not None:
            offsets = scales * np.float32(-self.middle)
        else:
            offsets = self.halves(raw, self.offset)
            if self.offset_factors:
                offsets = -offsets * self.numbers(raw, self.offset_factors).astype(np.float32)
        codes = self.numbers(raw, self.codes)
        if self.table:
            codes = np.array(self.table, np.uint8)[codes]
        return _flat(codes), _flat(scales), _flat(offsets)

    def weights(self, raw: Array) -> Array:
        """Raw u8 [n, bytes] -> f32 [n, k]."""
        if self.plain is not None:
            return np.ascontiguousarray(raw).view(self.plain).astype(np.float32)
        codes, scales, offsets = self.parts(raw)
        grouped = codes.reshape(*scales.shape, self.group).astype(np.float32)
        return np.asarray(grouped * scales[..., None] + offsets[..., None]).reshape(codes.shape)


def halved_powers(exponents: Array) -> Array:
    """2 ** (e - 128) as f32, of u8."""
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - 128).astype(np.float32)


def _flat(of_blocks: Array) -> Array:
    return of_blocks.reshape(len(of_blocks), of_blocks.shape[1] * of_blocks.shape[2])


_LOW = (0, 1, 2, 3, 8, 9, 10, 11)


def _six_bits(at: int, by: int) -> Planes:
    """Eight numbers of 6 bits as Q4_K and Q5_K store factors; those of offsets lie ``by`` = 4 bytes or bits further."""
    low = Plane(4, tuple(at + i + (by if i < 8 else 0) for i in _LOW), (0,) * 4 + (by,) * 4)
    return low, Plane(2, tuple(at + by + i % 4 for i in range(8)), (4,) * 4 + (6,) * 4)


def _unsigned(*values: int) -> tuple[int, ...]:
    """128 more."""
    return tuple(value + int(_SIGN) for value in values)


_CURVE = _unsigned(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = _unsigned(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Doubled."""
_NIBBLES = tuple(Plane(4, tuple(range(16)), (shift,) * 16) for shift in (0, 4))
FORMS = {
    "Q4_0": Form(4, 32, 18, 32, (_plane(4, 2, 32, 16),), 0, 8),
    "Q4_1": Form(4, 32, 20, 32, (_plane(4, 4, 32, 16),), 0, offset=2),
    "Q5_0": Form(5, 32, 22, 32, (_plane(4, 6, 32, 16), _bit_by_bit(2)), 0, 16),
    "Q5_1": Form(5, 32, 24, 32, (_plane(4, 8, 32, 16), _bit_by_bit(4)), 0, offset=2),
    "Q8_0": Form(8, 32, 34, 32, (_plane(8, 2, 32, 32),), 0, 128),
    "Q2_K": Form(2, 256, 84, 16, (_plane(2, 16, 256, 32),), 80, offset=82,
                 factors=_NIBBLES[:1], offset_factors=_NIBBLES[1:]),
    "Q3_K": Form(3, 256, 110, 16, (_plane(2, 32, 256, 32), _plane(1, 0, 256, 32)), 108, 4,
                 factors=(_plane(4, 96, 16, 8), _plane(2, 104, 16, 4)), less=32),
    "Q4_K": Form(4, 256, 144, 32, (_plane(4, 16, 256, 32),), 0, offset=2,
                 factors=_six_bits(4, 0), offset_factors=_six_bits(4, 4)),
    "Q5_K": Form(5, 256, 176, 32, (_plane(4, 48, 256, 32), _plane(1, 16, 256, 32)), 0, offset=2,
                 factors=_six_bits(4, 0), offset_factors=_six_bits(4, 4)),
    "Q6_K": Form(6, 256, 210, 16, (_plane(4, 0, 256, 64), _plane(2, 128, 256, 32)), 208, 32,
                 factors=(_plane(8, 192, 16, 16),), less=128),
    "IQ4_NL": Form(4, 32, 18, 32, (_plane(4, 2, 32, 16),), 0, 128, table=_CURVE),
    "IQ4_XS": Form(4, 256, 136, 32, (_plane(4, 8, 256, 16),), 0, 128, table=_CURVE, less=32,
                   factors=(Plane(4, tuple(4 + i // 2 for i in range(8)), (0, 4) * 4),
                            Plane(2, (2,) * 4 + (3,) * 4, (0, 2, 4, 6) * 2))),
    "MXFP4": Form(4, 32, 17, 32, (_plane(4, 1, 32, 16),), 0, 128, table=_E2M1, power=True),
    "F32": Form(32, 1, 4, 1, (), 0, 0, plain=F32),
    "F16": Form(16, 1, 2, 1, (), 0, 0, plain=F16),
    "BF16": Form(16, 1, 2, 1, (), 0, 0, plain=BF16),
}  # fmt: skip
"""By GGUF's name."""
