"""Post-training quantisation: from a float model and a few inputs to a model of 8-bit products.

>>> made = quantize("model.onnx", {"x": images})
>>> made.save("model.int8.onnx")
>>> print(made.report)
"""

from bolt_numba.quantize.calibrate import METHODS, Ranges, calibrate
from bolt_numba.quantize.report import QuantizeReport
from bolt_numba.quantize.scale_files import read_scales, write_clips, write_table
from bolt_numba.quantize.storage import with_stored_weights
from bolt_numba.quantize.tool import Quantised, quantize
from bolt_numba.quantize.weights import NarrowModel, weights_only

__all__ = [
    "METHODS", "NarrowModel", "Quantised", "QuantizeReport", "Ranges", "calibrate", "quantize", "read_scales",
    "weights_only", "with_stored_weights", "write_clips", "write_table",
]  # fmt: skip
