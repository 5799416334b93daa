"""The package list is complete, and the wheel holds what the repository holds."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import bolt_numba
from bolt_numba import devices
from bolt_numba.base.files.kept import BUILT_IN

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages_in_tree() -> set[str]:
    found = set()
    tops = (("bolt_numba", "bolt_numba"), ("converters", "bolt_numba.converters"), ("kernels", "bolt_numba.kernels"))
    for top, name in tops:
        for init in (ROOT / top).rglob("__init__.py"):
            if not {"converters", "kernels"} & set(init.relative_to(ROOT).parts[1:]):  # the links
                found.add(".".join([name, *init.relative_to(ROOT / top).parts[:-1]]))
    return found


def test_every_package_is_listed() -> None:
    # setuptools drops an unlisted package in silence: the editable install still sees it, the wheel does not
    assert packages_in_tree() == set(PROJECT["tool"]["setuptools"]["packages"])


def test_every_folder_of_modules_is_a_package() -> None:
    for top in ("bolt_numba", "converters", "kernels", "simulator/bolt_numba_simulator"):
        for file in (ROOT / top).rglob("*.py"):
            assert (file.parent / "__init__.py").exists(), f"{file.parent} has modules but no __init__.py"


def test_links_lead_to_the_top_level_folders() -> None:
    for name in ("converters", "kernels"):
        link = ROOT / "bolt_numba" / name
        assert link.resolve() == ROOT / name
        if link.is_symlink():
            assert not link.readlink().is_absolute()


def test_version_is_stated_once_for_each_reader() -> None:
    assert PROJECT["project"]["version"] == bolt_numba.__version__
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(bolt_numba.__version__)}\b", changes, re.MULTILINE)


def test_the_simulator_is_of_the_same_version_and_whole() -> None:
    about = tomllib.loads((ROOT / "simulator" / "pyproject.toml").read_text())
    assert about["project"]["version"] == bolt_numba.__version__
    assert about["project"]["dependencies"] == [f"bolt-numba[cuda]=={bolt_numba.__version__}"]
    assert about["project"]["name"] in devices.APART.values()
    inits = (ROOT / "simulator").rglob("__init__.py")
    assert {".".join(init.parent.relative_to(ROOT / "simulator").parts) for init in inits} == set(
        about["tool"]["setuptools"]["packages"]
    )


def test_every_dependency_is_explained() -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text()
    groups = [PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"].values()]
    for requirement in {r for group in groups for r in group}:
        name = re.split(r"[<>=!~\[ ]", requirement)[0]
        assert f"`{name}`" in text, f"docs/dependencies.md does not say why {name} is needed"


def test_other_files_state_the_same_version() -> None:
    version = re.escape(bolt_numba.__version__)
    assert re.search(rf"^version: {version}$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert re.fullmatch(rf"{version},?", newest[1])


def test_the_description_reads_well_elsewhere() -> None:
    """An index shows no files of the repository: no links to them, and no pictures."""
    text = (ROOT / PROJECT["project"]["readme"]).read_text()
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert links
    assert all(link.startswith("https://") for link in links)


def test_what_a_package_index_is_told() -> None:
    about = PROJECT["project"]
    minors = {c.rpartition(" ")[2] for c in about["classifiers"] if re.search(r":: 3\.\d+$", c)}
    assert min(minors, key=lambda m: int(m[2:])) == about["requires-python"].removeprefix(">=")
    assert len(about["keywords"]) > 5
    assert all(re.search(r"^numba>=[\d.]+,<[\d.]+$", d) for d in about["dependencies"] if d.startswith("numba"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of all files of the repository."""
    if int(pytest.importorskip("setuptools").__version__.partition(".")[0]) < 77:
        pytest.skip("setuptools is older than what pyproject.toml asks for")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("there is no repository: this is a distribution of it")
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).exists():
            target = tmp_path / "tree" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target, follow_symlinks=False)
    return tmp_path / "tree"


def built(tree: Path, kind: str) -> Path:
    """The distribution that setuptools makes of a tree; kind: "sdist" or "wheel"."""
    code = f"import setuptools.build_meta as b; print(b.build_{kind}({str(tree.parent)!r}))"
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True)
    return tree.parent / done.stdout.split()[-1]


def test_a_source_distribution_has_all_files(tree: Path) -> None:
    """It holds the tests, what they read, and the two links without which there is no package."""
    names = {str(file.relative_to(tree)) for file in tree.rglob("*") if file.is_symlink() or not file.is_dir()}
    with tarfile.open(built(tree, "sdist")) as archive:
        held = {member.name.partition("/")[2]: member for member in archive}
    assert not names - set(held)
    links = {name: held[f"bolt_numba/{name}"].linkname for name in ("converters", "kernels")}
    assert links == {"converters": "../converters", "kernels": "../kernels"}


def test_a_wheel_has_its_bill_of_materials(tree: Path) -> None:
    with zipfile.ZipFile(built(tree, "wheel")) as wheel:
        version = bolt_numba.__version__
        bill = json.loads(wheel.read(f"bolt_numba-{version}.dist-info/sboms/bolt_numba.cdx.json"))
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/bolt-numba@{version}"
    wanted = {re.split(r"[<>=]", needed)[0] for needed in PROJECT["project"]["dependencies"]}
    assert {each["name"] for each in bill["components"]} == wanted
    ranges = {each["name"]: each["versionRange"] for each in bill["components"]}
    assert re.fullmatch(r"vers:pypi/>=[\d.]+\|<[\d.]+", ranges["numba"])


def test_type_marker_is_packaged() -> None:
    assert (ROOT / "bolt_numba" / "py.typed").exists()
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["bolt_numba"]


def test_what_comes_with_the_package_is_found_where_wheels_have_it() -> None:
    """`bench/wheels.py` writes it there."""
    assert Path(bolt_numba.__file__).parent / "built_in" == BUILT_IN
