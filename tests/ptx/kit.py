"""Small PTX kernels of statements, and memory to run them on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba_simulator.ptx import GlobalMemory, Module

REGISTERS = """
.reg .pred %p<20>; .reg .b16 %h<40>; .reg .b32 %r<80>; .reg .b64 %a<80>; .reg .f32 %f<80>; .reg .f64 %d<40>;
"""
HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"


def kernel(body: str, params: Sequence[str] = (".u64 x", ".u64 y"), before: str = "") -> str:
    """PTX of one kernel; %a0, %a1, ... are its first parameters, %r0 the thread, %a20 four times the thread."""
    loads = "".join(f"ld.param{p.split()[0]} %a{i}, [{p.split()[1]}];\n" for i, p in enumerate(params) if "64" in p)
    given = ", ".join(f".param {p}" for p in params)
    threads = "mov.u32 %r0, %tid.x; mul.wide.u32 %a20, %r0, 4;\n"
    return f"{HEAD}{before}\n.visible .entry k({given})\n{{{REGISTERS}{loads}{threads}{body}\nret;\n}}\n"


def put(memory: GlobalMemory, array: np.ndarray[Any, Any]) -> int:
    address = memory.allocate(array.nbytes)
    memory.write(address, array)
    return address


def run(
    body: str, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], threads: int, shared: int = 0, blocks: int = 1,
    before: str = "", **options: Any,
) -> np.ndarray[Any, Any]:  # fmt: skip
    """Content of y after a kernel of x and y."""
    memory = GlobalMemory()
    ins, outs = put(memory, x), put(memory, y)
    Module(kernel(body, before=before)).launch(memory, (blocks,), threads, [ins, outs], shared, **options)
    found = np.empty_like(y)
    memory.read(outs, found)
    return found


_LOADS = {1: ("b8", "h"), 2: ("b16", "h"), 4: ("b32", "r"), 8: ("b64", "a")}


def evaluate(statement: str, result: Any, *operands: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``statement`` for each element, one thread each: $0 is the result's register, $1 and on are operands."""
    memory = GlobalMemory()
    n = operands[0].size
    out = put(memory, np.zeros(n, result))
    params = [".u64 out", *(f".u64 in{i}" for i in range(len(operands)))]
    body = ""
    for i, operand in enumerate(operands, 1):
        kind, letter = _LOADS[operand.itemsize]
        body += f"mul.wide.u32 %a30, %r0, {operand.itemsize}; add.s64 %a31, %a{i}, %a30;\n"
        body += f"ld.global.{kind} %{letter}{10 + 50 * (letter == 'a') + i}, [%a31];\n"
        statement = statement.replace(f"${i}", f"%{letter}{10 + 50 * (letter == 'a') + i}")
    kind, letter = _LOADS[np.dtype(result).itemsize]
    register = f"%{letter}{10 + 50 * (letter == 'a')}"
    body += f"mul.wide.u32 %a30, %r0, {np.dtype(result).itemsize}; add.s64 %a31, %a0, %a30;\n"
    body += statement.replace("$0", register) + f"\nst.global.{kind} [%a31], {register};"
    addresses = [put(memory, operand) for operand in operands]
    Module(kernel(body, params)).launch(memory, (1,), n, [out, *addresses])
    found = np.empty(n, result)
    memory.read(out, found)
    return found
