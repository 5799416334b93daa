"""Sessions and values under the module name that clients sometimes import them from."""

from bolt_numba.onnxruntime.binding import IOBinding
from bolt_numba.onnxruntime.providers import check_and_normalize_provider_args
from bolt_numba.onnxruntime.session import InferenceSession
from bolt_numba.onnxruntime.values import OrtDevice, OrtValue

__all__ = ["IOBinding", "InferenceSession", "OrtDevice", "OrtValue", "check_and_normalize_provider_args"]
