"""The name onnxruntime, whose meaning is `bolt_numba.onnxruntime`: importing this puts that module in its place."""

from bolt_numba.onnxruntime import *  # noqa: F403 - for editors and type checkers
from bolt_numba.onnxruntime import install

install()
