"""The plug-in that lets bolt-numba run parts of models on SimNPU.  Importing it needs no SDK."""

from simnpu_driver.driver import SimDriver

__all__ = ["SimDriver"]
