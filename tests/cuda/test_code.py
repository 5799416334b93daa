"""Code of CUDA kernels in the cache: found, damaged, made by other processes, and run where no compiler is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bolt_numba.base.config import CACHE_DIR
from bolt_numba.base.files.trusted import CacheWarning
from bolt_numba.cli.kernels import cache_list
from bolt_numba.errors import KernelError
from bolt_numba.kernels import compiles, jit, precompile
from bolt_numba.kernels.cuda import code, needs
from bolt_numba.kernels.cuda.code import CUBIN, PTX, CudaCode
from bolt_numba.kernels.cuda.declare import PTR, SM_80, SM_90A, CudaKernel, Macro, cuda_kernel
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import cuda, static_range
from bolt_numba.kernels.cuda.language.warp import warp_sum
from bolt_numba.kernels.precompile import compiling_in
from bolt_numba.kernels.shipping import received, shipped
from tests.cuda.resources import instructions


def fresh(number: int) -> CudaKernel:
    """A kernel with a helper, a macro and a static loop, which no other test has."""
    load, store, fill = lang.load_f32, lang.store_f32, Macro("fill", 4, number)

    @cuda_kernel(threads=32, blocks=lambda a: 1, unrolled=True, x=PTR)
    def fresh_kernel(x):  # type: ignore[no-untyped-def]
        tile = cuda.local.array(4, "f4")
        fill(tile)
        for i in static_range(4):
            store(x + 4 * i, warp_sum(load(x)) + tile[i])

    return fresh_kernel


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_DIR.name, str(tmp_path))
    return tmp_path


def files(cache: Path) -> list[str]:
    return sorted(file.name for file in cache.glob("cuda-*/*.kernel"))


def test_code_is_compiled_once_and_found_after_that(cache: Path) -> None:
    with compiles.waited() as waited:
        text = CudaCode(fresh(1), SM_80, PTX).data
        assert CudaCode(fresh(1), SM_80, PTX).data == text
    assert [done.name for done in waited] == ["fresh_kernel"]
    assert ".visible .entry" in text.decode()
    assert CudaCode(fresh(1), SM_80, CUBIN).data.startswith(b"\x7fELF")
    assert [name.rpartition("-")[2] for name in files(cache)] == ["cubin.kernel", "ptx.kernel"]
    assert len({CudaCode(fresh(number), arch, PTX).file for number in (1, 2) for arch in (SM_80, "sm_90a")}) == 4


def test_what_cannot_be_read_is_compiled_again(cache: Path) -> None:
    text = CudaCode(fresh(1), SM_80, PTX).data
    file = cache / CudaCode(fresh(1), SM_80, PTX).file
    whole = file.read_bytes()
    for damaged in (whole[:-1], b"", whole.replace(b"entry", b"enter")):
        file.write_bytes(damaged)
        assert not CudaCode(fresh(1), SM_80, PTX).is_ready
        assert CudaCode(fresh(1), SM_80, PTX).data == text
        assert file.read_bytes() == whole
    other = CudaCode(fresh(2), SM_80, PTX)
    (cache / other.file).write_bytes(whole)  # the code of another kernel
    assert not other.is_ready


def test_the_cache_lists_and_clears_what_is_for_gpus(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = len(CudaCode(fresh(1), SM_80, PTX).data)
    ((name, kept),) = code.cache_entries(cache)
    assert name.startswith("fresh_kernel-")
    assert kept > size
    cache_list(as_json=True)
    assert [(row["kernel"], row["bytes"]) for row in json.loads(capsys.readouterr().out)] == [(name, kept)]
    assert jit.clear_cache() == 1
    assert code.cache_entries(cache) == []


def test_several_processes_compile_at_once(cache: Path) -> None:
    kernels = [fresh(number) for number in range(10, 13)]
    with compiles.waited() as waited, compiling_in(2):
        code.prepare(kernels, SM_80, PTX)
    assert len(waited) == 3
    assert "by this process" in {done.where for done in waited}
    assert len({done.where for done in waited}) == 2
    assert code.lacking(kernels, SM_80, PTX) == []
    assert [c.kernel for c in code.lacking([*kernels, fresh(13)], SM_80, PTX)] != []


def test_another_process_gets_the_kernel_as_it_is() -> None:
    sent = shipped(CudaCode(fresh(1), SM_80, PTX))
    assert sent is not None
    there: Any = received(sent)
    assert there.digest == fresh(1).digest
    assert there.file == CudaCode(fresh(1), SM_80, PTX).file
    assert there.kernel.threads == 32


def test_a_thread_that_may_not_wait_is_told_what_is_lacking(cache: Path) -> None:
    lacking = CudaCode(fresh(1), SM_80, PTX)
    with compiles.no_compiling(), pytest.raises(compiles.LackingError):
        _ = lacking.data
    assert lacking.data


def test_a_missing_compiler_is_named_with_its_remedy(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "versions", lambda: {"numba-cuda": ""})
    wanted = "numba-cuda: got none, wanted 0.30.x: pip install 'bolt-numba"
    with pytest.raises(KernelError, match=f"kernel 'fresh_kernel': .* {wanted}"):
        _ = CudaCode(fresh(1), SM_80, PTX).data
    monkeypatch.setattr(needs, "versions", lambda: {"numba-cuda": "0.30.4"})
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    with pytest.raises(KernelError, match="NUMBA_ENABLE_CUDASIM: got a simulator"):
        _ = CudaCode(fresh(1), SM_80, PTX).data


def unknown(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Have another version of Numba CUDA, or what is given."""
    found = {"numba-cuda": "0.31.0"} | {package.replace("_", "-"): version for package, version in versions.items()}
    for module in (needs, code):
        monkeypatch.setattr(module, "versions", lambda: found)
    for cached in (needs._tell_unknown, code._compiler_digest, code._made_by_others):
        cached.cache_clear()


def test_a_compiler_that_was_never_tried_is_tried(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told, and what a known one has made is taken in the place of what this one would make."""
    known = CudaCode(fresh(1), SM_80, CUBIN).data
    with monkeypatch.context() as patch:
        unknown(patch)
        assert CudaCode(fresh(1), SM_80, CUBIN).data == known
        assert not caplog.messages
        with caplog.at_level("WARNING", logger="bolt_numba"):
            for number in (2, 3):
                assert CudaCode(fresh(number), SM_80, CUBIN).data
        (told,) = caplog.messages
        assert "numba-cuda: got 0.31.0, which was never tried, wanted 0.30.x" in told
        assert len(list(cache.glob("cuda-*"))) == 2
        patch.setitem(sys.modules, "bolt_numba.kernels.cuda.compiler", None)
        with pytest.raises(KernelError, match=r"kernel 'fresh_kernel': compiler: got numba-cuda 0\.31\.0 .*wanted"):
            _ = CudaCode(fresh(4), SM_80, CUBIN).data
    code._compiler_digest.cache_clear()
    assert not CudaCode(fresh(2), SM_80, CUBIN).is_ready


def test_code_is_taken_from_others_where_nvvm_is_that_of_a_toolkit(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing says which version it is."""
    made = CudaCode(fresh(1), SM_80, CUBIN).data
    with monkeypatch.context() as patch:
        unknown(patch, numba_cuda="0.30.4", nvidia_nvvm="")
        assert CudaCode(fresh(1), SM_80, CUBIN).data == made
        assert CudaCode(fresh(2), SM_80, CUBIN).data
    assert not [text for text in caplog.messages if "never tried" in text]
    code._compiler_digest.cache_clear()


def test_without_a_compiler_no_process_is_started_for_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(is_nice: bool = False) -> None:
        raise AssertionError("started in vain")

    monkeypatch.setattr(needs, "versions", lambda: {"numba-cuda": ""})
    monkeypatch.setattr(precompile.Assistant, "start", start)
    with compiling_in(2):
        code.prepare([fresh(number) for number in range(20, 24)], SM_80, PTX)


def test_a_folder_without_code_for_gpus_is_told(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "system").mkdir()
    monkeypatch.setenv("BOLT_NUMBA_SYSTEM_CACHE", str(tmp_path / "system"))
    with pytest.warns(CacheWarning, match="has no kernels for GPUs and these versions of sources and packages"):
        code.prepare([fresh(1)], SM_80, PTX)


def test_code_of_another_machine_serves_where_no_compiler_is(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder's end names the compiler that made it; without one the newest folder is read."""
    made = CudaCode(fresh(1), SM_80, CUBIN).data
    monkeypatch.setattr(code, "_compiler_digest", lambda: "")
    monkeypatch.setattr(needs, "versions", lambda: {"numba-cuda": ""})
    code.newest.cache_clear()
    assert CudaCode(fresh(1), SM_80, CUBIN).data == made
    with pytest.raises(KernelError, match="got none in the cache and no compiler"):
        _ = CudaCode(fresh(2), SM_80, CUBIN).data
    code.newest.cache_clear()


KERNEL = """
from bolt_numba.kernels.cuda.declare import PTR, cuda_kernel
from bolt_numba.kernels.cuda.language.lang import load_f32, store_f32

@cuda_kernel(threads=32, blocks=lambda a: 1, x=PTR)
def twice(x):
    store_f32(x, load_f32(x) + load_f32(x))
"""
START = """
import sys
from bolt_numba.kernels.cuda.code import cubin
from mine import twice
cubin(twice, "sm_80")
print([name for name in sys.modules if name.partition(".")[0] in ("numba", "llvmlite", "cuda", "numba_cuda")])
"""


def test_code_that_is_in_the_cache_imports_no_compiler(cache: Path) -> None:
    (cache / "mine.py").write_text(KERNEL)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(cache), os.environ.get("PYTHONPATH", "")])}
    for wanted in (False, True):
        done = subprocess.run([sys.executable, "-c", START], env=env, capture_output=True, text=True, check=True)
        assert (done.stdout.strip() == "[]") == wanted


def test_kernels_of_the_cpu_are_compiled_without_what_is_for_gpus(cache: Path) -> None:
    """Numba CUDA hooks into imports when Python starts, and takes the place of numba.cuda alone."""
    program = """
import sys
from bolt_numba.kernels.cpu.language.lang import PTR, load_f32, native, store_f32

@native(x=PTR)
def twice(p, tid, nthreads):
    store_f32(p.x, load_f32(p.x) * 2)

assert twice.address
print("numba" in sys.modules, [name for name in sys.modules if "cuda" in name and "redirector" not in name])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True []"


def test_numpy_without_row_stack_serves(cache: Path) -> None:
    """NumPy 2.5 has none, and Numba CUDA asks for it."""
    (cache / "mine.py").write_text(KERNEL)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(cache), os.environ.get("PYTHONPATH", "")])}
    start = "import numpy as np\nvars(np).pop('row_stack', None)\n" + START
    done = subprocess.run([sys.executable, "-c", start], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_linker_keeps_what_warp_groups_need(cache: Path) -> None:
    """It leaves setmaxnreg out where it links parts, and says so with C7504."""
    more, less, store = lang.setmaxnreg_inc, lang.setmaxnreg_dec, lang.store_i32

    @cuda_kernel(threads=256, blocks=lambda a: 1, arch=SM_90A, unrolled=True, x=PTR)
    def groups(x):  # type: ignore[no-untyped-def]
        if cuda.threadIdx.x < 128:
            less(24)
            store(x, 1)
        else:
            more(240)
            store(x + 4, 2)

    from bolt_numba.kernels.cuda.compiler import linked

    cubin, said = linked(groups, SM_90A)
    assert "C75" not in said
    names = instructions(cubin)
    assert names is None or "USETMAXREG" in names


def test_the_interpreter_gets_ptx_of_the_pinned_version() -> None:
    """A newer NVVM would write what the drivers of CUDA 13.0 refuse."""
    version = code.ptx(fresh(1), SM_80).partition(".version ")[2].split()[0]
    assert tuple(map(int, version.split("."))) <= (9, 0)
