"""The shape of the code: who may import whom, how long files and functions may be, what is documented."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from pathlib import Path

import pytest

import bolt_numba
from bolt_numba import ops
from bolt_numba.base.config import SWITCHES
from bolt_numba.kernels import registry
from bolt_numba.ops.registry import OPS

ROOT = Path(__file__).parent.parent
FILE_LINES, FUNCTION_LINES, KERNEL_LINES = 500, 50, 80
FOLDER_FILES, FULL_FILES = 20, 18
FULL = {"converters/paddle/reading/tables", "kernels"}
"""Folders of more than `FULL_FILES` files: who adds one asks which of them belong together, for a second level."""
SUPPRESSED = re.compile(r"#\s*budget:\s*\S{3,}")
"""Behind the first line of a function (or on line 1 of a file): why it may be longer."""

SOURCES = sorted(
    file
    for top in ("bolt_numba", "converters", "kernels", "simulator", "tests", "bench", "examples")
    for file in (ROOT / top).rglob("*.py")
    if not {"converters", "kernels"} & set(file.relative_to(ROOT).parts[1:-1]) or top == "tests"
)

MEANING = {"base", "ops", "ir"}
ALLOWED: dict[str, set[str]] = {
    "base": {"base"},
    "errors": {"base"},
    "types": {"base"},
    "ops": {"base", "ops"},
    "ir": MEANING,
    "codegen": MEANING | {"codegen"},
    "passes": MEANING | {"codegen", "passes"},
    "kernels": MEANING - {"ir"} | {"codegen", "kernels"},
    "converters": MEANING | {"converters"},
    "runtime": MEANING | {"codegen", "passes", "runtime", "kernels"},
    "devices": MEANING | {"devices", "runtime", "kernels", "plugins"},
    "plugins": MEANING | {"plugins", "passes", "converters"},
    "preprocessing": MEANING | {"preprocessing", "passes"},
    "sessions": MEANING | {"passes", "converters", "runtime", "devices", "plugins", "sessions"},
    "simulator": {"base"} | {"devices", "kernels", "runtime", "simulator"},
}
"""Part of the package -> parts it may import; a part that is not listed (session, command line) may import any."""
INTERPRETER = {"base", "simulator"}
"""What `bolt_numba_simulator.ptx` may import."""


@lru_cache(maxsize=1)  # those of all files take half a gigabyte
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


def module_path(file: Path) -> tuple[str, ...]:
    """Parts of a file's module below ``bolt_numba``; those of the simulator are below ``simulator``."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return parts[1:] if parts[0] == "bolt_numba" else parts[:1] + parts[2:] if parts[0] == "simulator" else parts


def module_name(file: Path) -> str:
    """As it is imported."""
    parts = [part for part in module_path(file) if part != "__init__"]
    return ".".join(["bolt_numba_simulator", *parts[1:]] if parts[:1] == ["simulator"] else ["bolt_numba", *parts])


@cache
def import_nodes(file: Path) -> list[ast.Import | ast.ImportFrom]:
    """Import statements of a file that running it may reach: not those below ``if TYPE_CHECKING:``."""
    whole, skipped = [*ast.walk(tree(file))], set[int]()
    for node in whole:
        if isinstance(node, ast.If) and getattr(node.test, "id", getattr(node.test, "attr", "")) == "TYPE_CHECKING":
            skipped.update(range(node.lineno, (node.end_lineno or 0) + 1))
    return [node for node in whole if isinstance(node, (ast.Import, ast.ImportFrom)) and node.lineno not in skipped]


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Every module name that running a file may import, with its line."""
    for node in import_nodes(file):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif node.module is not None:
            if node.module == "bolt_numba":
                yield from ((node.lineno, f"bolt_numba.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module


def of_each(files: list[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """One test over many files, which tells of all that are wrong at once."""

    def whole(check: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            wrong = []
            for file in files:
                try:
                    check(file)
                except AssertionError as error:
                    wrong.append(f"{name_of(file)}: {error}")
            assert not wrong, "\n".join(wrong)

        return test

    return whole


PACKAGE = [f for f in SOURCES if f.relative_to(ROOT).parts[0] in ("bolt_numba", "converters", "kernels", "simulator")]


@of_each(PACKAGE)
def test_imports_go_in_the_allowed_direction(file: Path) -> None:
    part = module_path(file)[0]
    allowed = INTERPRETER if module_path(file)[:2] == ("simulator", "ptx") else ALLOWED.get(part)
    for line, name in imports(file):
        package, *parts = name.split(".")
        if package == "bolt_numba_simulator":
            parts = ["simulator"]
        elif package != "bolt_numba" or not parts:
            continue
        is_allowed = parts[0] != "simulator" if allowed is None else parts[0] in allowed
        assert is_allowed, f"{name_of(file)}:{line}: {part} imports {name}"


def test_flows_stand_on_top() -> None:
    """Sessions do without them: only the server and the command line know them."""
    for file in PACKAGE:
        if module_path(file)[0] not in ("flow", "serve", "cli"):
            named = [name for _, name in imports(file) if f"{name}.".startswith("bolt_numba.flow.")]
            assert not named, f"{name_of(file)} imports {named}"


@of_each(PACKAGE)
def test_only_the_planner_and_devices_import_kernels(file: Path) -> None:
    part = module_path(file)[0]
    if part in ("kernels", "devices", "simulator"):
        return
    barred = "bolt_numba.kernels.cpu" if part in ("runtime", "cli", "export") else "bolt_numba.kernels"
    for line, name in imports(file):
        assert not f"{name}.".startswith(f"{barred}."), f"{name_of(file)}:{line} imports {name}"


@of_each([f for f in PACKAGE if module_path(f)[0] == "runtime"])
def test_the_runtime_knows_no_operator_and_no_kernel_by_name(file: Path) -> None:
    """What it needs to know is a fact that the operator's class, the maker or the step states."""
    ops.load_all()
    registry.load("cpu")
    known = {entry.name for entries in registry.KERNELS.values() for entry in entries} | OPS.keys()
    classes = {made.__name__ for made in OPS.values()}
    texts = {id(node.value) for node in ast.walk(tree(file)) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree(file)):
        where = f"{name_of(file)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            assert node.value not in known, f"{where} names {node.value!r}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bolt_numba.ops"):
            named = {alias.name for alias in node.names} & classes
            assert not named, f"{where} imports {sorted(named)}"


def test_modules_import_each_other_in_one_direction() -> None:
    """Also in functions: an import that waits is an import."""
    modules = {module_name(file): file for file in PACKAGE}
    graph = {name: set(imported_modules(file)) & modules.keys() - {name} for name, file in modules.items()}
    assert not circles(graph), f"these import each other: {circles(graph)}"


def test_folders_import_each_other_in_one_direction() -> None:
    """At every level: of what lies in one folder, each folder with all below it, and the files together."""
    rooms = {module_name(file): room_of(file) for file in PACKAGE}
    levels: dict[tuple[str, ...], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for here, file in zip(rooms.values(), PACKAGE, strict=True):
        for there in {rooms[to] for to in imported_modules(file) if to in rooms} - {here}:
            shared = next(i for i, (a, b) in enumerate(zip((*here, ""), (*there, ""), strict=False)) if a != b)
            level, below, above = levels[here[:shared]], (*there, "")[shared], (*here, "")[shared]
            level[above].add(below)
            level[below] |= set()
    wrong = {"/".join(level): found for level, graph in levels.items() if (found := circles(graph))}
    assert not wrong, f"these import each other, '' for files: {wrong}"
    assert len(levels) > 20


def room_of(file: Path) -> tuple[str, ...]:
    """Its folder; the entry of the command line stands apart, as Python looks for it in the lowest one."""
    path = module_path(file)
    return path if path == ("__main__",) else path[:-1]


def circles(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """What is left of a graph without all that is in no circle."""
    while leaves := {name for name, wanted in graph.items() if not wanted}:
        graph = {name: wanted - leaves for name, wanted in graph.items() if name not in leaves}
    while roots := graph.keys() - {name for wanted in graph.values() for name in wanted}:
        graph = {name: wanted for name, wanted in graph.items() if name not in roots}
    return graph


def imported_modules(file: Path) -> Iterator[str]:
    """Modules that a file imports: ``from a import b`` is of a.b where that is one, else of a."""
    for node in import_nodes(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                top = ROOT / "simulator" if inner.startswith("bolt_numba_simulator.") else ROOT
                path = top.joinpath(*inner.split("."))
                yield inner if path.with_suffix(".py").exists() or (path / "__init__.py").exists() else node.module


@of_each(PACKAGE)
def test_numba_has_one_door(file: Path) -> None:
    parts = module_path(file)
    for line, name in imports(file):
        if name.split(".")[0] == "numba":
            assert parts[0] == "kernels", f"{name_of(file)}:{line}: numba is called by kernels/ only"
            allowed = ("bits", "compiler", "compiler_passes", "halves", "memory", "raw", "simd", "tiles", "tiles_bytes")
            is_language = parts[:3] == ("kernels", "cuda", "language")
            assert is_language or parts[-1] in allowed, f"{name_of(file)}:{line} imports numba"


@of_each(SOURCES)
def test_files_and_functions_keep_their_budget(file: Path) -> None:
    lines = file.read_text().splitlines()
    if lines and not SUPPRESSED.search(lines[0]):
        assert len(lines) <= FILE_LINES, f"{name_of(file)} has {len(lines)} lines"
    limit = KERNEL_LINES if module_path(file)[0] == "kernels" else FUNCTION_LINES
    for node in ast.walk(tree(file)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or 0) - node.lineno + 1
            if not SUPPRESSED.search(lines[node.lineno - 1]):
                assert length <= limit, f"{name_of(file)}:{node.lineno}: {node.name} has {length} lines"


def test_folders_keep_their_budget() -> None:
    counts = Counter(name_of(file.parent) for file in PACKAGE if file.name != "__init__.py")
    crowded = {folder for folder, count in counts.items() if count > FOLDER_FILES}
    assert not crowded, f"more than {FOLDER_FILES} files: {sorted(crowded)}"
    full = {folder for folder, count in counts.items() if count > FULL_FILES}
    assert full == FULL, f"more than {FULL_FILES} files, and not in FULL, or there and no longer full: {full ^ FULL}"


def test_no_two_classes_share_a_name() -> None:
    """A word has one meaning, also where a file keeps it to itself (``_Name``)."""
    homes: dict[str, list[str]] = {}
    for file in PACKAGE:
        for name in re.findall(r"^class (\w+)[(:]", file.read_text(), re.MULTILINE):
            homes.setdefault(name.strip("_"), []).append(name_of(file))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


BARE = re.compile(
    r"\b_?(MOST|LEAST|MAX|MIN|FEW|MANY|LARGE|LARGEST|SMALL|SMALLEST|GREATEST|LONGEST|SHORT|SHORTEST|LOWEST|HIGHEST|"
    r"WIDEST|LIMIT|LIMITS|SHOWN|THREADS|PARALLEL_ELEMENTS|PARALLEL_BYTES)\b"
)


@of_each(PACKAGE)
def test_constants_say_of_what(file: Path) -> None:
    """`MOST_LETTERS`, never `MOST`, which stands in many files and is another number in each."""
    for node in tree(file).body if BARE.search(file.read_text()) else ():
        stored = [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        bare = [n.id for n in stored if BARE.fullmatch(n.id)] if isinstance(node, (ast.Assign, ast.AnnAssign)) else []
        assert not bare, f"line {node.lineno}: {bare}: of what?"


@of_each(SOURCES)
def test_files_begin_with_what_they_are(file: Path) -> None:
    if file.stat().st_size:
        assert re.match(r'(#.*\n)*r?"""\S', file.read_text()), f"{name_of(file)} has no docstring"


@of_each(SOURCES)
def test_no_unfinished_business(file: Path) -> None:
    words = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
    for number, line in enumerate(file.read_text().splitlines(), 1):
        assert not words.search(line), f"{name_of(file)}:{number}: {line.strip()}"


def test_public_names_are_documented() -> None:
    for name in bolt_numba.__all__:
        thing = getattr(bolt_numba, name)
        if name != "__version__":
            assert (thing.__doc__ or "").strip(), f"bolt_numba.{name} has no docstring"
    for name in ("Session", "Outputs", "InferenceSession"):
        cls = getattr(bolt_numba, name)
        for method in ("run", "run_into", "profile", "memory", "report", "warmup", "__call__"):
            if method in vars(cls):
                assert vars(cls)[method].__doc__, f"{name}.{method} has no docstring"


def test_every_public_name_exists() -> None:
    for name in bolt_numba.__all__:
        assert getattr(bolt_numba, name) is not None
    assert callable(bolt_numba.verify)


def test_operators_have_a_meaning() -> None:
    ops.load_all()
    assert len(OPS) > 60
    for name, op in OPS.items():
        assert callable(op.infer), name
        assert callable(op.reference), name
        assert (op.__doc__ or "").strip(), f"{name} has no docstring"


def test_operators_are_imported_by_name() -> None:
    ops.load_all()
    ours = [made for made in OPS.values() if made.__module__.startswith("bolt_numba.")]
    assert all(getattr(ops, made.__name__) is made for made in ours)
    for name in ("OPS", "Nothing", "conv"):
        with pytest.raises(AttributeError):
            getattr(ops, name)


def test_importing_everything_but_kernels_leaves_numba_alone() -> None:
    modules = [module_name(file) for file in PACKAGE if module_path(file)[0] not in ("kernels", "__main__")]
    code = f"import sys, importlib\nfor m in {modules!r}: importlib.import_module(m)\nassert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_environment_variable_is_in_the_table_and_in_the_docs() -> None:
    used = {name for f in PACKAGE for name in re.findall(r"\bBOLT_NUMBA_[A-Z_]+\b", f.read_text())}
    assert used == {switch.name for switch in SWITCHES}
    usage = (ROOT / "docs" / "usage.md").read_text()
    assert all(f"`{name}`" in usage for name in used)


def test_import_is_quick() -> None:
    code = "import time; t = time.process_time(); import bolt_numba; print(time.process_time() - t)"
    times = [
        float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
        for _ in range(5)
    ]
    assert min(times) < 0.25
