"""What pyproject.toml cannot say: links in a source distribution, and a bill of materials in a wheel."""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.sdist import sdist

sys.path.insert(0, str(Path(__file__).parent))
from bench.sbom import NAME, sbom


class LinkedSdist(sdist):
    """setuptools copies files and no links; without them the tests of an unpacked distribution find no package."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the files, then set the links anew."""
        super().make_release_tree(base_dir, files)
        for name in ("converters", "kernels"):
            link = Path(base_dir, "bolt_numba", name)
            if not link.is_symlink():
                link.symlink_to(f"../{name}", target_is_directory=True)


class ListedWheel(bdist_wheel):
    """setuptools writes no bill of materials."""

    def write_wheelfile(self, wheelfile_base: str, *more: str) -> None:
        """Write WHEEL, and the bill beside it."""
        super().write_wheelfile(wheelfile_base, *more)
        place = Path(wheelfile_base, NAME)
        place.parent.mkdir(exist_ok=True)
        place.write_text(sbom(Path(wheelfile_base, "METADATA").read_text(encoding="utf-8")), encoding="utf-8")


setup(cmdclass={"sdist": LinkedSdist, "bdist_wheel": ListedWheel})
