"""TEMPORARY"""
import numpy as np, pytest
from tests.cuda.harness import expect
from bolt_numba.ops.pointwise import Relu

@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_relu(dtype):
    expect(Relu(), np.random.default_rng(0).standard_normal((5, 77)).astype(dtype))
