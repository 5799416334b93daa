"""What pyproject.toml cannot say: a source distribution has the two links that the repository has."""

from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist


class LinkedSdist(sdist):
    """setuptools copies files and no links; without them the tests of an unpacked distribution find no package."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the files, then set the links anew."""
        super().make_release_tree(base_dir, files)
        for name in ("converters", "kernels"):
            link = Path(base_dir, "bolt_numba", name)
            if not link.is_symlink():
                link.symlink_to(f"../{name}", target_is_directory=True)


setup(cmdclass={"sdist": LinkedSdist})
