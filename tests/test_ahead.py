"""Kernels compiled by several processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_CODE = """
import sys
from bolt_numba.kernels import jit
from bolt_numba.kernels.precompile import compiling_in, prepare
from bolt_numba.kernels.jit import I64, PTR, native_source

def kernel(i):
    text = f"def store{i}(p, tid, nthreads):\\n    store_i64(p.y, p.n + {i})\\n"
    from bolt_numba.kernels.cpu.language.lang import store_i64
    return native_source(text, f"store{i}", {"y": PTR, "n": I64}, store_i64=store_i64)

broken = native_source("def broken(p, tid, nthreads):\\n    nothing()\\n", "broken", {"n": I64})
made = [kernel(i) for i in range(5)]
prepare(made)
assert not jit.cache_entries(), "only where it is asked for"
with compiling_in(2):
    prepare([*made, *made, broken])
assert len(jit.cache_entries()) == 5, jit.cache_entries()
assert "numba" not in sys.modules, "the children compiled"
assert all(k.address for k in made)
assert "numba" not in sys.modules
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_children_fill_the_cache(tmp_path: Path) -> None:
    env = os.environ | {"BOLT_NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", _CODE], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr
