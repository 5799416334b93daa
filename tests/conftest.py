"""Options and fixtures of the whole suite: golden files, processors that there are not."""

from __future__ import annotations

import gc
import logging
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

import bolt_numba_simulator
from bolt_numba.base.swallowed import FAULTS
from bolt_numba.ir.text import diff
from bolt_numba.kernels import progress
from tests import level
from tests.totals import Memory, Totals

# A cold cache must not decide what runs: tests of stand-ins ask for them.
os.environ.setdefault("BOLT_NUMBA_STAND_INS", "0")
# The suite has a process for each processor already: tests of assistants ask for them.
os.environ.setdefault("BOLT_NUMBA_COMPILERS", "1")

# What an earlier run has left must not decide what a test sees: tests of kept plans ask for them.
os.environ.setdefault("BOLT_NUMBA_PLANS_MIB", "0")

# A busy machine must not decide what a log has: tests of the line about long compiling ask for it.
progress.LONG = 1e6

# Who reads why a test failed wants to see the frames inside.
os.environ.setdefault("BOLT_NUMBA_TRACEBACKS", "1")

# The simulated GPU need not be installed: processes that tests start find it, too.
SIMULATOR = str(Path(bolt_numba_simulator.__file__).parent.parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), SIMULATOR)))

GOLDEN = Path(__file__).parent / "golden"

os.environ["BOLT_NUMBA_SYSTEM_CACHE"] = ""  # what this machine keeps for all users is none of the suite's

# The machine may be busy with something else: how long an example takes says nothing.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files instead of comparing")


def pytest_configure(config: pytest.Config) -> None:
    """Before modules of tests are imported, which ask how many cases they draw."""
    os.environ.pop(level.QUICK, None)
    if config.getoption("-m") == "not long":
        os.environ[level.QUICK] = "1"
        settings.register_profile("quick", settings.get_profile("patient"), derandomize=True, database=None)
        settings.load_profile("quick")
    config.pluginmanager.register(Totals())
    config.pluginmanager.register(Memory())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in level.long_tests(items):
        item.add_marker("long")
    for item in items:
        if item.nodeid.startswith(level.DRAWN):
            item.add_marker("drawn")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Ten thousand tests are made and none goes: looking for garbage among them took half of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def nothing_swallowed() -> Iterator[Counter[str]]:
    """No test may end with an internal error that the package passed over; one that causes some takes them away."""
    FAULTS.clear()
    yield FAULTS
    assert not FAULTS, f"errors that nobody saw: {dict(FAULTS)}"


@pytest.fixture
def tapes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that would have a tape made behind its back makes it: for tests that look for tapes after each call."""
    from bolt_numba.runtime import runner

    monkeypatch.setattr(runner, "later", lambda owner, key, work: work(tuple))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with ``tests/golden/<name>.txt``; the diff is the review."""
    update = bool(request.config.getoption("--update-golden"))

    def check(name: str, text: str) -> None:
        file = GOLDEN / f"{name}.txt"
        if update:
            file.write_text(text)
        assert file.exists(), f"no {file.name}: run pytest --update-golden"
        changes = diff(file.read_text(), text, (f"golden/{name}", "now"))
        assert not changes, f"\n{changes}"

    return check


@pytest.fixture
def processors(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """Gives the process another team of threads, as if it had so many processors; the team."""
    from bolt_numba.devices import threads  # few tests want it, and it takes its time

    def give(count: int) -> Any:
        monkeypatch.setattr(threads, "_teams", [threads._Team(count)])
        return threads.team()

    return give


class Done(NamedTuple):
    """What a run of the command line left: its exit code, standard output, standard error."""

    code: int
    out: str
    err: str


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs the command line with arguments, in this process."""
    from bolt_numba.cli import app  # few tests want it

    def run(*args: object) -> Done:
        return Done(app.run([str(a) for a in args]), *capsys.readouterr())

    return run


@pytest.fixture
def logs() -> Iterator[None]:
    """The command's log is not that of later tests."""
    loggers = [logging.getLogger(name) for name in ("bolt_numba", "uvicorn.error")]
    before = [(each.level, each.propagate, each.handlers[:]) for each in loggers]
    yield
    for each, (least, propagate, handlers) in zip(loggers, before, strict=True):
        each.setLevel(least)
        each.propagate, each.handlers = propagate, handlers
