"""The package list is complete, and the wheel holds what the repository holds."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import bolt_numba

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
    for top in ("bolt_numba", "converters", "kernels"):
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


def test_every_dependency_is_explained() -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text()
    groups = [PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"].values()]
    for requirement in {r for group in groups for r in group}:
        name = re.split(r"[<>=!~\[ ]", requirement)[0]
        assert f"`{name}`" in text, f"docs/dependencies.md does not say why {name} is needed"


def test_type_marker_is_packaged() -> None:
    assert (ROOT / "bolt_numba" / "py.typed").exists()
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["bolt_numba"]
