"""Loops and branches that a kernel decides when it is compiled, written out in its syntax tree.

``for k in static_range(4)`` becomes four copies of its body with k a number; ``if static(FLAG)`` and
``a if static(FLAG) else b`` keep one branch.  Closure variables and globals that are ints become numbers, and
arithmetic of numbers is done.  Lines stay those of the file, so messages name them.  Numba takes a tenth of a second
for each statement of a body of a thousand: macros serve better there.
"""

from __future__ import annotations

import ast
import copy
import linecache
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from bolt_numba.base.errors import InternalError, KernelError

_Function = Callable[..., Any]


class _Put(ast.NodeTransformer):
    """A number in place of a loop's variable."""

    def __init__(self, name: str, value: int) -> None:
        self.name, self.value = name, value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id == self.name and isinstance(node.ctx, ast.Load):
            return ast.copy_location(ast.Constant(self.value), node)
        return node


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


class _Unroll(ast.NodeTransformer):
    """scope: what names mean.  assigned: names that the function gives another meaning."""

    def __init__(self, scope: dict[str, Any], assigned: set[str], filename: str) -> None:
        self.scope, self.assigned, self.filename = scope, assigned, filename

    def value(self, node: ast.expr) -> Any:
        """What an expression is now."""
        whole = ast.fix_missing_locations(ast.Expression(copy.deepcopy(node)))
        try:
            return eval(compile(whole, self.filename, "eval"), dict(self.scope))
        except Exception as error:
            raise KernelError(
                f"{self.filename}:{node.lineno}: static: got `{ast.unparse(node)}` ({error}), wanted what is known "
                "when the kernel is compiled"
            ) from None

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for statement in body:
            made = self.visit(statement)
            found += made if isinstance(made, list) else [made]
        return found

    def visit_For(self, node: ast.For) -> Any:
        if not _calls(node.iter, "static_range"):
            return self.generic_visit(node)
        assert isinstance(node.iter, ast.Call)
        inner = [each for statement in node.body for each in ast.walk(statement)]
        if not isinstance(node.target, ast.Name) or any(isinstance(n, (ast.Break, ast.Continue)) for n in inner):
            raise KernelError(
                f"{self.filename}:{node.lineno}: static_range: got a loop with break, continue or several variables, "
                "wanted one variable and a body that runs to its end"
            )
        found: list[ast.stmt] = []
        for value in range(*(self.value(self.visit(copy.deepcopy(each))) for each in node.iter.args)):
            found += self.statements([_Put(node.target.id, value).visit(copy.deepcopy(each)) for each in node.body])
        return found

    def visit_If(self, node: ast.If) -> Any:
        if not _calls(node.test, "static"):
            return self.generic_visit(node)
        assert isinstance(node.test, ast.Call)
        return self.statements(node.body if self.value(node.test.args[0]) else node.orelse) or ast.Pass()

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        if not _calls(node.test, "static"):
            return self.generic_visit(node)
        assert isinstance(node.test, ast.Call)
        return self.visit(node.body if self.value(node.test.args[0]) else node.orelse)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        sides = node.left, node.right
        if all(isinstance(side, ast.Constant) and type(side.value) is int for side in sides):
            made = self.value(node)
            return ast.copy_location(ast.Constant(made), node) if type(made) is int else node
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self.scope.get(node.id)
        if isinstance(node.ctx, ast.Load) and type(value) is int and node.id not in self.assigned:
            return ast.copy_location(ast.Constant(value), node)
        return node


def _definition(function: _Function) -> ast.FunctionDef:
    """Its syntax tree, with the lines of its file.  Raises KernelError where the file was changed since it was read."""
    code = function.__code__
    tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    made = _nested(compile(tree, code.co_filename, "exec", dont_inherit=True))
    if not any(_meaning(each) == _meaning(code) for each in made):
        raise KernelError(
            f"{code.co_filename}:{code.co_firstlineno}: {code.co_name}: got a file that was changed since it was "
            "imported, or none, wanted the source text: start the process anew"
        )
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if code.co_firstlineno in (first, node.lineno):
                return node
    raise InternalError(f"{code.co_filename}:{code.co_firstlineno}: {code.co_name}: got code, but no function")


def _nested(code: CodeType) -> Iterator[CodeType]:
    """The functions of a file, at any depth."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _nested(each)


def _meaning(code: CodeType) -> tuple[Any, ...]:
    """What tells the code of a function from any other, and where it stands."""
    numbers = [(type(each), repr(each)) for each in code.co_consts if not isinstance(each, CodeType)]
    names = code.co_names, code.co_varnames, code.co_freevars
    return code.co_name, code.co_firstlineno, code.co_code, numbers, names


def is_static(function: _Function) -> bool:
    """Whether it decides anything when it is compiled."""
    return not {"static", "static_range"}.isdisjoint(function.__code__.co_names)


def unrolled(function: _Function) -> _Function:
    """The same function with all that is static written out; what it named from outside are its globals."""
    code = function.__code__
    definition = _definition(function)
    definition.decorator_list = []
    for argument in (*definition.args.args, *definition.args.kwonlyargs):
        argument.annotation = None
    definition.returns = None
    scope = dict(function.__globals__)
    scope |= {n: c.cell_contents for n, c in zip(code.co_freevars, function.__closure__ or (), strict=True)}
    stored = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    assigned = {each.arg for each in definition.args.args} | stored
    definition.body = _Unroll(scope, assigned, code.co_filename).statements(definition.body)
    module = ast.fix_missing_locations(ast.Module([definition], []))
    exec(compile(module, code.co_filename, "exec"), scope)
    made: _Function = scope[code.co_name]
    return made
