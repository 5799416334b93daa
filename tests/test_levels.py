"""Levels of instructions: which one a processor has, and that nothing compiled depends on more than the level."""

from __future__ import annotations

import itertools
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from bolt_numba.errors import DeviceError
from bolt_numba.kernels.instructions import isa, processor
from bolt_numba.kernels.instructions.isa import LEVELS, levels_of, lower_levels, target

BASE = "fpu tsc cx8 cmov mmx fxsr sse sse2 syscall lm pni ssse3 cx16 sse4_1 sse4_2 movbe popcnt aes f16c lahf_lm abm"
HASWELL = f"{BASE} avx fma bmi1 avx2 bmi2 pclmulqdq"
SKYLAKE = f"{HASWELL} avx512f avx512dq avx512cd avx512bw avx512vl"
CASCADE = f"{SKYLAKE} avx512_vnni"
ICE = f"{CASCADE} avx512vbmi avx512_vbmi2 avx512_bitalg avx512_vpopcntdq avx512ifma gfni vaes vpclmulqdq sha_ni"
CORE = "fpu cx8 cmov mmx fxsr sse sse2 lm pni ssse3 cx16 lahf_lm"
PROCESSORS = {
    "Nehalem": ("GenuineIntel", 6, f"{CORE} sse4_1 sse4_2 popcnt", "x86-64-v2"),
    "Core 2": ("GenuineIntel", 6, CORE, "x86-64"),
    "Sandy Bridge": ("GenuineIntel", 6, f"{BASE} avx", "x86-64-v2"),
    "Haswell": ("GenuineIntel", 6, HASWELL, "x86-64-v3"),
    "Zen 3": ("AuthenticAMD", 25, f"{HASWELL} sse4a clzero vaes", "x86-64-v3"),
    "Alder Lake": ("GenuineIntel", 6, f"{HASWELL} gfni vaes avx_vnni", "x86-64-v3-vnni"),
    "Skylake-X": ("GenuineIntel", 6, SKYLAKE, "x86-64-v4"),
    "Cascade Lake": ("GenuineIntel", 6, CASCADE, "x86-64-v4-vnni"),
    "Cooper Lake": ("GenuineIntel", 6, f"{CASCADE} avx512_bf16", "x86-64-v4-vnni"),
    "Ice Lake": ("GenuineIntel", 6, ICE, "x86-64-v4-vbmi"),
    "Zen 4": ("AuthenticAMD", 25, f"{ICE} sse4a clzero avx512_bf16", "x86-64-v4-bf16"),
    "Zen 5": ("AuthenticAMD", 26, f"{ICE} sse4a clzero avx512_bf16 avx_vnni avx512_vp2intersect", "x86-64-v4-bf16"),
    "Sapphire Rapids": ("GenuineIntel", 6, f"{ICE} avx512_bf16 avx512_fp16 amx_tile avx_vnni", "x86-64-v4-bf16"),
}
ARM = {
    "Cortex-A72": ("fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid", "aarch64"),
    "Neoverse N1": ("fp asimd evtstrm aes atomics fphp asimdhp lrcpc dcpop asimddp ssbs", "aarch64-dot"),
    "Neoverse V1": ("fp asimd asimdhp asimddp sve i8mm bf16", "aarch64-i8mm"),
}


def cpuinfo(vendor: str, family: int, flags: str, model: int = 17) -> str:
    """What Linux shows of two processors of x86."""
    one = f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: some processor\n"
    return f"processor\t: 0\n{one}flags\t\t: {flags}\n\nprocessor\t: 1\n{one}flags\t\t: {flags} wrong\n\n"


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_processor_is_of_the_highest_level_that_it_has(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor, family, flags, level = PROCESSORS[name]
    file = tmp_path / "cpuinfo"
    file.write_text(cpuinfo(vendor, family, flags))
    monkeypatch.setattr(processor, "_CPUINFO", file)
    found = processor._described()
    assert found is not None
    assert found[0] == f"{vendor} {family}"
    assert levels_of(found[1], True)[-1] == level


@pytest.mark.parametrize("name", ARM)
def test_levels_of_aarch64(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags, level = ARM[name]
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nFeatures\t: {flags}\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n\n")
    monkeypatch.setattr(processor, "_CPUINFO", file)
    found = processor._described()
    assert found is not None
    assert found[0] == "0x41 0xd0c"
    assert levels_of(found[1], False)[-1] == level


def test_what_linux_tells_is_what_llvm_tells() -> None:
    """But for names that no level needs."""
    described, asked = processor._described(), processor._asked()
    if described is None:
        pytest.skip("this system does not describe its processor")
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    needed = {feature for level in LEVELS.values() for feature in level.features if level.is_x86 == is_x86}
    assert described[1] & needed == asked[1] & needed


def test_no_description_and_no_llvm_leave_the_least(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "none")
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    assert processor._described() is None
    assert processor._asked() == ("", frozenset())
    assert levels_of(frozenset(), True) == ["x86-64"]
    assert levels_of(frozenset(), False) == ["aarch64"]


def test_levels_are_a_ladder() -> None:
    """What a level has the ones above have; only what cannot be asked of one another stands side by side."""
    ladder = [LEVELS[level] for level in LEVELS if level.startswith("x86-64") and level != "x86-64-v3-vnni"]
    for lower, upper in itertools.pairwise(ladder):
        assert set(lower.features) < set(upper.features)
    assert len({isa.level for isa in LEVELS.values()}) == len(LEVELS)


def test_lower_levels_have_the_same_vectors() -> None:
    """Code of theirs may stand for a level's own."""
    assert [x.level for x in lower_levels(LEVELS["x86-64-v4-vbmi"])] == ["x86-64-v4-vnni", "x86-64-v4"]
    assert [x.level for x in lower_levels(LEVELS["x86-64-v3-vnni"])] == ["x86-64-v3"]
    assert [x.level for x in lower_levels(LEVELS["aarch64-i8mm"])] == ["aarch64-dot", "aarch64"]
    assert lower_levels(LEVELS["x86-64-v3"]) == lower_levels(LEVELS["x86-64"]) == []


FOLDER = "from bolt_numba.kernels.jit import cache_dir; print(cache_dir())"


def folder_on(vendor: str, family: int, flags: str, forced: str, tmp_path: Path) -> str:
    """The cache folder of a process on such a processor that is held to a level."""
    file = tmp_path / "cpuinfo"
    file.write_text(cpuinfo(vendor, family, flags))
    code = "from pathlib import Path\nfrom bolt_numba.kernels.instructions import processor\n"
    code += f"processor._CPUINFO = Path({str(file)!r})\n"
    env = {**os.environ, "BOLT_NUMBA_ISA": forced}
    done = subprocess.run([sys.executable, "-c", code + FOLDER], env=env, capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.mark.skipif(not target().is_x86, reason="the levels are of x86")
def test_a_forced_level_is_one_folder_on_all_processors(tmp_path: Path) -> None:
    found = [folder_on(*PROCESSORS[name][:3], "avx2", tmp_path) for name in ("Haswell", "Zen 3", "Zen 4", "Alder Lake")]
    assert len(set(found)) == 1
    assert "/x86-64-v3-" in found[0]
    found = [folder_on(*PROCESSORS[name][:3], "x86-64-v4-vnni", tmp_path) for name in ("Cascade Lake", "Zen 5")]
    assert len(set(found)) == 1
    refused = folder_on(*PROCESSORS["Ice Lake"][:3], "x86-64-v4-bf16", tmp_path)
    assert refused.startswith("bolt_numba.errors.DeviceError: BOLT_NUMBA_ISA: instruction set: got x86-64-v4-bf16")


def test_vectors_of_512_bits_are_used_where_llvm_names_their_size() -> None:
    """LLVM 18 to 20 name it; a level of AVX-512 without it would be compiled to vectors of 256 bits."""
    compiler = pytest.importorskip("bolt_numba.kernels.compiler")
    level = LEVELS["x86-64-v4"]
    asked = compiler._feature_text(level, ["avx512f", "avx512bf16", "evex512"]).split(",")
    assert asked[0] == "-avx512bf16"
    assert "-evex512" not in asked
    assert set(asked[1:]) == {f"+{name}" for name in level.features}


def test_an_unknown_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOLT_NUMBA_ISA", "x86-64-v5")
    target.cache_clear()
    try:
        with pytest.raises(DeviceError, match=r"got x86-64-v5, wanted one of .*generic"):
            target()
    finally:
        monkeypatch.undo()
        target.cache_clear()
    assert isa.target() is target()


COMPILED = """
import json, sys
from pathlib import Path
from bolt_numba.kernels.instructions import processor
cpuinfo, caches = sys.argv[1:]
if cpuinfo:
    processor._CPUINFO, processor._CACHES = Path(cpuinfo), Path(caches)
import numpy as np
import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.cpu import machine
from bolt_numba.kernels.jit import on_compile
from bolt_numba.ops.arrays.reduce import Softmax
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.norm import LayerNormalization
from bolt_numba.ops.pointwise import Sigmoid
from bolt_numba.types import F32, TensorType
compiled = []
on_compile(lambda name, done: None if done else compiled.append(name))
rng, g = np.random.default_rng(0), Graph("net")
b = Builder(g)
w = lambda *dims: rng.standard_normal(dims, np.float32)
x = g.add_input("x", TensorType(F32, (1, 3, 61, 45)))
y = b(Conv(pads=(1,) * 4, strides=(2, 2)), x, w(48, 3, 3, 3))
y = b(Conv(pads=(1,) * 4, group=48), b(Conv(), y, w(48, 48, 1, 1)), w(48, 1, 3, 3))
y = b(Sigmoid(), b(Conv(pads=(1,) * 4), y, w(64, 48, 3, 3)))
y = b(LayerNormalization(axis=-1), y, w(23), w(23))
g.add_output(b(Softmax(axis=-1), b(MatMul(), y, w(23, 70))), "y")
feeds = {"x": w(1, 3, 61, 45)}
for precision in ("f32", "bf16"):
    bn.compile(g, threads=2, precision=precision).run(None, feeds)
print(json.dumps([compiled, machine.FMA_RATE, machine.L2, "numba" in sys.modules, "llvmlite" in sys.modules]))
"""


def other_processor(folder: Path) -> tuple[str, str]:
    """Another one of this machine's level: of another maker, with other caches."""
    assert processor._CPUINFO.is_file()
    text = processor._CPUINFO.read_text()
    split = processor.processor()[0].startswith("AuthenticAMD 25")
    vendor, family = ("GenuineIntel", 6) if split else ("AuthenticAMD", 25)
    flags = next(line for line in text.splitlines() if line.startswith("flags")).partition(":")[2]
    second = "1024K" if processor.processor()[2][2] == 512 << 10 else "512K"
    file, caches = folder / "cpuinfo", folder / "cpu" / "cache"
    file.write_text(cpuinfo(vendor, family, flags, model=143))
    for name, content in {
        "index0/level": "1", "index0/type": "Data", "index0/size": "48K", "index0/ways_of_associativity": "12",
        "index2/level": "2", "index2/type": "Unified", "index2/size": second, "index2/shared_cpu_map": "1",
    }.items():  # fmt: skip
        (caches / name).parent.mkdir(parents=True, exist_ok=True)
        (caches / name).write_text(content)
    (folder / "cpu" / "topology").mkdir()
    (folder / "cpu" / "topology" / "thread_siblings").write_text("1")
    return str(file), str(caches)


@pytest.mark.skipif(not target().is_x86 or not processor._CPUINFO.is_file(), reason="describes a processor of x86")
@pytest.mark.timeout(600)
def test_another_processor_of_the_level_compiles_nothing(tmp_path: Path) -> None:
    """Kernels of one machine serve on all of its level, whatever caches and multipliers they have."""
    found = []
    for where in (("", ""), other_processor(tmp_path)):
        done = subprocess.run([sys.executable, "-c", COMPILED, *where], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(json.loads(done.stdout))
    (_, rate, second, _, _), (compiled, other_rate, other_second, has_numba, has_llvm) = found
    assert second != other_second
    assert target().lanes != 16 or rate != other_rate
    assert compiled == []
    assert not has_numba
    assert not has_llvm
