"""Options of sessions, each declared once, in `Options`: who takes, keeps or hands on options does so by this record.

A new option is a field here, and its name among the `OptionKeywords`.  `bolt_numba.compile`, clones, pickles, commands,
flows, the benchmark and the drop-in for onnxruntime have it then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from bolt_numba.base.budget import Budget
from bolt_numba.base.config import MAX_PLANS, MAX_THREADS, default_stand_ins, default_threads
from bolt_numba.base.errors import OptionError
from bolt_numba.base.records import field_metadata, record
from bolt_numba.base.types import FALLBACKS, NUMERICS, PRECISIONS, precision_of

if TYPE_CHECKING:
    from typing import Unpack

    from bolt_numba.passes.pipeline import Stage


INT8 = "int8"
"""A precision of `bolt_numba.compile` alone, which needs calibration: a session runs its graph of integers as it is."""

CACHES = ("f16", "f32", INT8)

EIGHT_BITS = f"; 8 bits: bn.compile(model, precision={INT8!r}, calibration=inputs), or the command quantize"
"""What is said to who asks for another precision."""


def count_of(what: str, given: Any, least: int = 1) -> int:
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or given < least:
        raise OptionError(f"{what}: got {given!r:.80}, wanted a whole number from {least}")
    return int(given)


def want_number(what: str, given: Any, least: float, most: float) -> None:
    if not isinstance(given, (int, float)) or isinstance(given, bool) or not least <= given <= most:
        raise OptionError(f"{what}: got {given!r:.80}, wanted a number from {least:g} to {most:g}")


def flag_of(what: str, given: Any) -> bool:
    if not isinstance(given, (bool, np.bool_)):
        raise OptionError(f"{what}: got {given!r:.80}, wanted True or False")
    return bool(given)


def want_one_of(what: str, given: Any, known: Sequence[str], more: str = "") -> Any:
    """One of a few texts.  more: what a message says behind them."""
    if not isinstance(given, str) or given not in known:
        raise OptionError(f"{what}: got {given!r:.80}, wanted one of {', '.join(known)}{more}")
    return given


def wanted_threads(what: str, threads: Any) -> int:
    """How many threads share a call, whether the system gives any or not; None: as many as the environment says."""
    given = default_threads() if threads is None else threads
    wanted = f"wanted a whole number from 1 to {MAX_THREADS}"
    if isinstance(given, str):
        raise OptionError(f"{what}: got the text {given!r:.80}, {wanted}: int(...) makes it of a text")
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
        raise OptionError(f"{what}: got {given!r:.80}, {wanted}")
    if not 1 <= given <= MAX_THREADS:
        raise OptionError(f"{what}: got {given}, {wanted}")
    return int(given)


def _device(what: str, given: Any) -> Any:
    """`devices.in_order` knows which there are."""
    if isinstance(given, (list, tuple)) and not given:
        raise OptionError(f"{what}: got {given!r}, wanted one device or several")
    for place, name in enumerate(given if isinstance(given, (list, tuple)) else ()):
        if name in given[:place]:
            other = f"several of one driver have names of yours behind a colon, as {name}:a and {name}:b"
            raise OptionError(f"{what}: got {name!r} twice, wanted each device once: {other}")
    return tuple(given) if isinstance(given, list) else given


def _stages(what: str, given: Any) -> Any:
    if isinstance(given, str) or (given is not None and not isinstance(given, Iterable)):
        raise OptionError(f"{what}: got {given!r:.80}, wanted stages of passes.pipeline")
    return None if given is None else tuple(given)


def _properties(what: str, given: Any) -> Any:
    if given is not None and not isinstance(given, Mapping):
        raise OptionError(f"{what}: got a {type(given).__name__}, wanted those of each device by its name")
    return given


@record(frozen=True)
class Option:
    """What is to be known of an option beside its type and default.

    check: gives the value as it is kept, of the option's name and what a caller gave; raises OptionError.  choices: the
    texts that it may be.  fills: whether it also makes something of the default.  help, metavar, flag: of the command
    line, which has no option without help; flag: None: the option's name.
    """

    check: Callable[[str, Any], Any]
    help: str = ""
    metavar: str | None = None
    flag: str | None = None
    choices: tuple[str, ...] = ()
    fills: bool = False


def _option(*args: Any, **kwargs: Any) -> dict[str, Option]:
    return {"option": Option(*args, **kwargs)}


def _choice(
    choices: tuple[str, ...], help: str, spelled: Callable[[Any], Any] = lambda x: x, more: str = ""
) -> dict[str, Option]:
    check = lambda what, x: want_one_of(what, spelled(x), choices, more)  # noqa: E731
    return _option(check, help, "|".join(choices), choices=choices)


@record(frozen=True)
class Options:
    """What a session is made with, as keywords of `bolt_numba.compile`, too.

    Parameters
    ----------
    threads: that share the work of a call; None: the processors of this process (or ``BOLT_NUMBA_NUM_THREADS``).
    precision: ``"f32"``, or ``"bf16"``: constant weights of products and convolutions are held as bfloat16 and
        multiplied as such (twice as fast where the processor has AVX-512 BF16, elsewhere they are widened), and so
        are the products of attention; values that products alone make and read are bfloat16, sums and everything
        else f32.  ``"f16"``: weights of products are held as float16 and widened in registers.
        On a GPU all values are such halves (docs/cuda.md).
    numerics: how far algorithms may be from a direct sum: ``"strict"``, ``"default"`` or ``"fast"``; what each
        guarantees is in docs/numerics.md.
    tune: measure the algorithms that can run a node when a plan is made, and take the fastest, instead of following
        the cost model; what was measured is kept with the compiled kernels.  Another algorithm rounds differently.
    time_limit: seconds of one run once it is planned, behind which no step of it begins: a TimeLimitError; None: no
        limit.
    memory_limit: bytes that the buffers of one plan, or one result whose size data decide, may take; None: a share of
        what is free (or ``BOLT_NUMBA_MEMORY``).  More is refused by a BudgetError before it is allocated.
    max_plans: plans kept, one for each set of input shapes; all of them together keep to the same limit of memory.
    stages: what the passes do, with rules and passes of one's own (`passes.pipeline.with_rules`, `with_stage`);
        None: the usual ones.  A packed file is optimised already and takes none.
    stand_ins: whether a shape does without kernels that have to be compiled first: other algorithms, or references,
        stand in until that is done by other processes, and may round otherwise.  False: it waits, and its results
        never change.  None: yes (or ``BOLT_NUMBA_STAND_INS``).
    device: ``"cpu"``, ``"cuda"``, or several names in order of preference: each node runs on the first that has a
        kernel for it, and the CPU takes what is left.  ``"host"`` runs everything by references.
    properties: of devices that are plug-ins, by the device's name: ``{"openvino": {"device": "GPU"}}``.  Several of one
        driver are named as ``"openvino:a"`` and ``"openvino:b"``, each with properties of its own.
    fallback: what happens where a plug-in fails: ``"allow"``: the session computes by itself, and `report` says why; it
        warns where a device cannot be opened.  ``"warn"``: it warns once for each cause.  ``"forbid"``: a DeviceError.
    cache: what the keys and values of earlier positions are, where attention has them from outside: ``"f16"``,
        ``"f32"``, or ``"int8"``, bytes with a scale for each row, of which the caller has d + 4; None: as in the model.
    placement: which nodes plug-ins get or not, as a text, a file or a `Placement` (docs/plugins).

    Raises OptionError for a value that an option cannot have.
    """

    # fmt: off
    threads: int | None = field(default=None, metadata=_option(wanted_threads, "Threads of one run.", fills=True))
    precision: str = field(default="f32", metadata=_choice(
        PRECISIONS, "Of weights and their products.", precision_of, EIGHT_BITS))
    numerics: str = field(default="default", metadata=_choice(NUMERICS, "How exact algorithms are: docs/numerics.md."))
    tune: bool = field(default=False, metadata=_option(
        flag_of, "Measure which algorithm is fastest where several can run a node (kept)."))
    time_limit: float | None = field(default=None, metadata=_option(
        lambda _, given: Budget(seconds=given).seconds, "Behind which no step of a run begins.", "SECONDS"))
    memory_limit: int | None = field(default=None, metadata=_option(lambda _, given: Budget(memory=given).memory))
    max_plans: int = field(default=MAX_PLANS, metadata=_option(count_of))
    stages: Sequence[Stage] | None = field(default=None, metadata=_option(_stages))
    stand_ins: bool | None = field(default=None, metadata=_option(
        lambda what, given: default_stand_ins() if given is None else flag_of(what, given), fills=True))
    device: str | Sequence[str] = field(default="cpu", metadata=_option(
        _device,
        "Where nodes run, in order of preference (`devices` lists them); what is left runs on the CPU.", "NAME[,NAME]"))
    properties: Mapping[str, Mapping[str, Any]] | None = field(default=None, metadata=_option(
        _properties, "Of a plug-in, as openvino.device=GPU (`devices`).", "DEVICE.NAME=VALUE", "property"))
    fallback: str = field(default="allow", metadata=_choice(
        FALLBACKS, "Where a plug-in fails: run elsewhere, warn of it too, or fail."))
    cache: str | None = field(default=None, metadata=_option(
        lambda what, given: None if given is None else want_one_of(what, given, CACHES),
        "Of keys and values that decoders keep; as in the model.", "|".join(CACHES), choices=CACHES))
    placement: Any = field(default=None, metadata=_option(
        lambda _, given: given, "Which nodes plug-ins get, or not: docs/plugins.", "FILE"))
    # fmt: on

    def __post_init__(self) -> None:
        values = self.__dict__
        for name, option in OPTIONS.items():
            if option.fills or values[name] is not getattr(Options, name):
                values[name] = option.check(name, values[name])

    @property
    def thread_count(self) -> int:
        """The threads as a number, which the check makes of None."""
        assert self.threads is not None
        return self.threads

    @property
    def does_stand_in(self) -> bool:
        """Whether kernels stand in for others; what is tuned waits."""
        return bool(self.stand_ins) and not self.tune

    def but(self, **given: Unpack[OptionKeywords]) -> Options:
        """The same with other values.  Raises OptionError for one that there is not."""
        return options_of("Options", {**vars(self), **given})


if TYPE_CHECKING:

    class OptionKeywords(TypedDict, total=False):
        """The fields of `Options` once more; tests/test_options.py holds one to the other."""

        threads: int | None
        precision: str
        numerics: str
        tune: bool
        time_limit: float | None
        memory_limit: int | None
        max_plans: int
        stages: Sequence[Stage] | None
        stand_ins: bool | None
        device: str | Sequence[str]
        properties: Mapping[str, Mapping[str, Any]] | None
        fallback: str
        cache: str | None
        placement: Any


OPTIONS: dict[str, Option] = {name: metadata["option"] for name, metadata in field_metadata(Options).items()}
"""What is to be known of each option, by its name."""
_PLAIN = {"str": str, "bool": bool, "int": int, "float": float}


def plain_kind(name: str) -> type | None:
    """The type of an option that is a text, a number or a flag; None for those that are more."""
    return _PLAIN.get(Options.__annotations__[name].removesuffix(" | None"))


def want_known(what: str, given: Iterable[str], *more: str, without: str = "") -> None:
    """Raise OptionError, which is a TypeError, for names that are neither options, but for one, nor among ``more``."""
    known = {*OPTIONS, *more} - {without}
    if unknown := sorted({*given} - known):
        raise OptionError(not_among(f"{what}: options", unknown, sorted(known), THEIRS))


THEIRS = {
    "providers": "device", "execution_provider": "device", "backend": "device", "delegates": "device",
    "provider_options": "properties", "config": "properties",
    "intra_op_num_threads": "threads", "n_jobs": "threads", "num_workers": "threads",
    "dtype": "precision", "fp16": "precision", "half": "precision", "timeout": "time_limit",
}  # fmt: skip
"""Names of other libraries' options, where ours has no similar one, and ours."""
MOST_LISTED = 20
"""Names that a message lists."""
LONGEST_NAME = 200
"""Letters of a name that near ones are looked for, and of one that a message lists."""


def not_among(
    what: str, given: Sequence[Any], known: Sequence[str], meant: Mapping[Any, str] = {}, also: Sequence[str] = ()
) -> str:
    """What to say of names that there are not, as ``inputs: 'bites' is not one of ['bytes']; did you mean 'bytes'?``.

    meant: of some names what they stand for; others may be near to a known one.  also: known, and only counted.
    """
    from difflib import get_close_matches  # calls that are right do without

    small, found = {name.lower(): name for name in (*also, *known) if len(name) <= LONGEST_NAME}, []
    for name in given[:MOST_LISTED]:  # to compare takes time by the square of names, and of their letters
        plain = str(name).lower()
        near = get_close_matches(plain, small, n=1) if len(plain) <= LONGEST_NAME else []
        found += [repr(one) for one in ([meant[name]] if name in meant else map(small.get, near))]
    left, more = len(known) + len(also) - min(len(known), MOST_LISTED), len(given) - MOST_LISTED
    listed = ", ".join(f"{name!r:.{LONGEST_NAME}}" for name in known[:MOST_LISTED])
    listed += f" and {left} more" if left else ""
    names = " and ".join(f"{name!r:.80}" for name in given[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
    question = f"; did you mean {' and '.join(dict.fromkeys(found))}?" if found else ""
    return f"{what}: {names} {'is not one' if len(given) == 1 else 'are not'} of [{listed}]{question}"


def options_of(what: str, given: Mapping[str, Any], *more: str) -> Options:
    """Options by their names; raises OptionError for a name that there is not, and for a value that one cannot have.

    more: what else the caller takes.
    """
    if not given.keys() <= OPTIONS.keys():
        want_known(what, given, *more)
    return Options(**given)


def sign(function: Any) -> None:
    """Have the signature of a function with ``**options`` name them, for `help` and `inspect`."""
    own = signature(function)
    *others, _ = own.parameters.values()
    defaults = vars(Options)
    made = [Parameter(name, Parameter.KEYWORD_ONLY, default=defaults[name]) for name in OPTIONS]
    function.__signature__ = own.replace(parameters=[*others, *made])
