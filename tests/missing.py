"""What is missing of something that was added: one line each, with the file to edit and the line to write there."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from onnx import defs

from bolt_numba.converters.onnx.writing.graph import BY_OUTPUTS, NEUTRAL
from bolt_numba.converters.onnx.writing.registry import schema_by_name
from bolt_numba.converters.readers import Reader
from bolt_numba.ops.registry import Op
from bolt_numba.passes.rewrite import Rule

ROOT = Path(__file__).parent.parent
NO_SPELLING = {
    "PairwiseCoupling", "BinaryPack", "BinaryConv", "BinaryMatMul", "Histogram", "PriorBox", "PSRoiPool", "CumMax",
    "CumMin", "LogCumSumExp", "SearchSorted", "GatherTree", "Inverse", "MulticlassNMS", "MatrixNMS",
    "GenerateProposals", "FitImage", "WarpImage", "YuvToRgba", "QuantizeRows", "RaggedAttention",
}  # fmt: skip
"""Operators that ONNX has no words for."""


def told(missing: Iterable[str]) -> None:
    """Fail with all lines."""
    lines = "\n  ".join(missing)
    assert not lines, f"something is missing:\n  {lines}"


def _shown(filename: str) -> str:
    file = Path(filename).resolve()
    return str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else filename


def file_of(op: type[Op]) -> str:
    return _shown(sys.modules[op.__module__].__file__ or op.__module__)


def modules_of(*packages: Any) -> Iterator[Any]:
    """Modules of packages, at every depth; modules that are none stand for themselves."""
    for package in packages:
        if not hasattr(package, "__path__"):
            yield package
            continue
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(info.name)


def written_rules(modules: Iterable[Any]) -> list[tuple[Rule, Any]]:
    """Rules that are names of modules, or in tables of theirs, with a module that has them; each rule once."""
    found: dict[int, tuple[Rule, Any]] = {}
    for module in modules:
        for value in vars(module).values():
            listed = value.values() if isinstance(value, dict) else value
            for each in listed if isinstance(value, (tuple, list, set, frozenset, dict)) else (value,):
                if isinstance(each, Rule) and (id(each) not in found or each.rewrite.__module__ == module.__name__):
                    found[id(each)] = each, module
    return list(found.values())


def rules_without_stage(modules: Iterable[Any], known: Iterable[Rule]) -> Iterator[str]:
    """known: what stages, packages of lowerings and the like have.  Equal names do not make one rule of two."""
    ids = set(map(id, known))
    for rule, module in written_rules(modules):
        if id(rule) in ids:
            continue
        file, listed = _shown(module.__file__), rule in getattr(module, "RULES", ())
        place, line = file, f"RULES: tuple[Rule, ...] = (..., {rule.name})"
        if listed:
            short = module.__name__.rpartition(".")[2]
            place, line = "bolt_numba/passes/pipeline/__init__.py", f'Stage("canonical", ((*CLEAN, *{short}.RULES),))'
        yield f"rule {rule.name} ({_shown(rule.where)}): no stage has it, so it never runs: add to {place}: {line}"


def rules_without_case(rules: Mapping[str, Rule], tested: Collection[str]) -> Iterator[str]:
    for name in sorted(rules.keys() - set(tested)):
        line = f'fires("{name}", "Operators after", x=(2, 3))(lambda b, x: the graph before)'
        yield f"rule {name} ({_shown(rules[name].where)}): no case: add to tests/rule_cases.py: {line}"
    for name in sorted(set(tested) - rules.keys()):
        yield f"rule {name}: no stage has it, but tests/rule_cases*.py has cases of it: remove them"


def ops_without_cases(ops: Mapping[str, type[Op]], tested: Collection[str]) -> Iterator[str]:
    for name in sorted(ops.keys() - set(tested)):
        yield no_cases(ops[name])
    for name in sorted(set(tested) - ops.keys()):
        yield f"{name}: tests/cases names an operator that bolt_numba/ops does not have: remove it there"


def no_cases(op: type[Op]) -> str:
    family = Path(file_of(op)).name
    text = f"@cases({op.name}) on a function (draw, op) that returns a Case(op(...), operands)"
    has_file = (ROOT / "tests" / "cases" / family).exists() and family != "__init__.py"
    place = f"add to tests/cases/{family}" if has_file else "add to a file in tests/cases, which may be a new one"
    return f"{op.name} ({file_of(op)}): no cases to test it with: {place}: {text}"


def ops_without_spelling(ops: Mapping[str, type[Op]], writers: Collection[type[Op]], none: set[str]) -> Iterator[str]:
    for name, op in ops.items():
        schema = schema_by_name(name)
        fields = {f.name for f in dataclasses.fields(op)} - set(NEUTRAL) - BY_OUTPUTS  # type: ignore[arg-type]
        ours = sorted(fields - set(schema.attributes)) if schema is not None else []
        if schema is not None and not ours:
            if name in none:
                yield f"{name}: ONNX has it: remove it from NO_SPELLING in tests/missing.py"
        elif op not in writers and name not in none:
            why = f"ONNX's {name} has no attribute {', '.join(ours)}" if ours else "ONNX has no operator of that name"
            line = f"@writer({name}) on a function (w, op, *terms) that returns w.node(...)"
            other = f"or to bolt_numba/ops/decomposed what it is made of, under @decomposes({name})"
            other += ", or its name to NO_SPELLING in tests/missing.py where ONNX has no words for it"
            yield f"{name} ({file_of(op)}): {why}: add to converters/onnx/writing/tables/standard.py: {line}, {other}"


def readers_of_nothing(readers: Mapping[tuple[str, str], list[Reader]], others: Collection[str]) -> Iterator[str]:
    """others: names that files have in ONNX's own domains although ONNX lacks them."""
    known = {(s.domain, s.name) for s in defs.get_all_schemas_with_history()}
    for domain, name in readers:
        if domain not in ("", "ai.onnx.ml") or (domain, name) in known or name in others:
            continue
        reader = readers[domain, name][0]
        code = getattr(inspect.unwrap(reader.function), "__code__", None)  # a row of `add_as_is` has none
        place = reader.module if code is None else f"{_shown(code.co_filename)}:{code.co_firstlineno}"
        line = f'@reader("{name}", domain="the.domain.of.its.files")'
        yield f"{name}: a reader, but the domain {domain or 'ai.onnx'} has no such operator: write at {place}: {line}"
