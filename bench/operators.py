"""The operators of the zoo in torch, JAX, Paddle and TensorFlow, for `bench.translate`; all are imported when used."""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Made = dict[str, Callable[..., Any]]
Dims = Sequence[int]


def common() -> Made:
    """Operators that tensors of all frameworks spell alike."""
    return {
        "Add": operator.add,
        "Sub": operator.sub,
        "Mul": operator.mul,
        "Div": operator.truediv,
        "MatMul": operator.matmul,
        "Reshape": lambda x, shape, **_: x.reshape(shape),
        "Flatten": lambda x, axis=1: x.reshape([math.prod(x.shape[:axis]), -1]),
        "Squeeze": lambda x, axes: x.squeeze(axes[0]),
        "Gemm": lambda x, w, b, transB=0, **_: x @ (w.T if transB else w) + b,
    }


def ceiled(size: int, kernel: int, stride: int, ceil_mode: int) -> int:
    """What to pad behind so that windows that begin inside count."""
    return -(size - kernel) % stride if ceil_mode else 0


def torch_recurrent() -> Made:
    """LSTM and GRU; weights in torch's order of gates are made in the first run."""
    torch: Any = importlib.import_module("torch")
    ordered: dict[int, list[Any]] = {}

    def weights(w: Any, r: Any, b: Any, gates: Dims) -> list[Any]:
        if id(w) not in ordered:
            size = r.shape[2]
            order = torch.cat([torch.arange(size) + size * gate for gate in gates])
            ordered[id(w)] = [w[0][order].contiguous(), r[0][order].contiguous(), *b[0].reshape(2, -1)[:, order]]
        return ordered[id(w)]

    def lstm(x: Any, w: Any, r: Any, b: Any, hidden_size: int) -> Any:
        zeros, own = x.new_zeros(1, x.shape[1], hidden_size), weights(w, r, b, (0, 2, 3, 1))
        return torch.lstm(x, (zeros, zeros), own, True, 1, 0.0, False, False, False)[0].unsqueeze(1)

    def gru(x: Any, w: Any, r: Any, b: Any, hidden_size: int, linear_before_reset: int = 0) -> Any:
        if not linear_before_reset:
            raise NotImplementedError("GRU: torch has only the cell that resets after the product")
        zeros, own = x.new_zeros(1, x.shape[1], hidden_size), weights(w, r, b, (1, 0, 2))
        return torch.gru(x, zeros, own, True, 1, 0.0, False, False, False)[0].unsqueeze(1)

    return {"LSTM": lstm, "GRU": gru}


def torch_table(dtype: Any) -> Made:
    """dtype: what Cast to float gives."""
    torch: Any = importlib.import_module("torch")
    F: Any = importlib.import_module("torch.nn.functional")

    def max_pool(x: Any, kernel_shape: Dims, strides: Dims, pads: Dims = (0,) * 4, ceil_mode: int = 0) -> Any:
        return F.max_pool2d(x, kernel_shape, strides, pads[:2], 1, bool(ceil_mode))

    return (
        common()
        | torch_recurrent()
        | {
            "Relu": F.relu,
            "Sigmoid": torch.sigmoid,
            "HardSwish": F.hardswish,
            "HardSigmoid": lambda x, **_: F.hardsigmoid(x),
            "Gelu": F.gelu,
            "Erf": torch.erf,
            "Clip": lambda x, low, high: F.hardtanh(x, low, high),
            "Conv": lambda x, w, b=None, *, strides, pads=(0, 0), group=1, **_: F.conv2d(
                x, w, b, strides, list(pads[:2]), 1, group
            ),
            "ConvTranspose": lambda x, w, b=None, *, strides, **_: F.conv_transpose2d(x, w, b, strides),
            "BatchNormalization": lambda x, g, b, m, v, epsilon=1e-5: F.batch_norm(x, m, v, g, b, False, 0.0, epsilon),
            "MaxPool": max_pool,
            "AveragePool": lambda x, kernel_shape, strides: F.avg_pool2d(x, kernel_shape, strides),
            "GlobalAveragePool": lambda x: x.mean((2, 3), keepdim=True),
            "Gemm": lambda x, w, b, transB=0, **_: F.linear(x, w if transB else w.T, b),
            "Concat": lambda *xs, axis: torch.cat([x.expand(xs[-1].shape[0], *x.shape[1:]) for x in xs], axis),
            "Split": lambda x, sizes, axis: torch.split(x, sizes, axis),
            "Transpose": lambda x, perm: x.permute(perm),
            "Softmax": lambda x, axis: torch.softmax(x, axis),
            "LayerNormalization": lambda x, g, b, axis, epsilon: F.layer_norm(x, g.shape, g, b, epsilon),
            "Gather": lambda table, i, axis: table.select(axis, i) if isinstance(i, int) else F.embedding(i, table),
            "Cast": lambda x, to: x.to(dtype),
            "Resize": lambda x, roi, scales, *_, **__: F.interpolate(x, scale_factor=scales[2:], mode="nearest"),
            "Attention": lambda q, k, v, mask=None, *, scale: F.scaled_dot_product_attention(
                q, k.transpose(-1, -2), v, attn_mask=mask, scale=scale
            ),
        }
    )


def jax_recurrent(cell: str) -> Callable[..., Any]:
    """LSTM or GRU by a scan: the products with the inputs before it, the recurrent one inside."""
    jax: Any = importlib.import_module("jax")
    jnp = jax.numpy
    sigmoid = jax.nn.sigmoid

    def lstm(r: Any, rb: Any, carry: Any, given: Any) -> Any:
        h, c = carry
        i, o, f, g = jnp.split(given + h @ r.T + rb, 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
        h = sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    def gru(r: Any, rb: Any, h: Any, given: Any) -> Any:
        size = h.shape[-1]
        z, s = jnp.split(sigmoid(given[:, : 2 * size] + h @ r[: 2 * size].T + rb[: 2 * size]), 2, -1)
        h = (1 - z) * jnp.tanh(given[:, 2 * size :] + (s * h) @ r[2 * size :].T + rb[2 * size :]) + z * h
        return h, h

    def gru_after(r: Any, rb: Any, h: Any, given: Any) -> Any:
        old = jnp.split(h @ r.T + rb, 3, -1)
        new = jnp.split(given, 3, -1)
        z, s = sigmoid(new[0] + old[0]), sigmoid(new[1] + old[1])
        h = (1 - z) * jnp.tanh(new[2] + s * old[2]) + z * h
        return h, h

    def run(x: Any, w: Any, r: Any, b: Any, hidden_size: int, linear_before_reset: int = 0) -> Any:
        wb, rb = jnp.split(b[0], 2)
        zeros = jnp.zeros((x.shape[1], hidden_size), x.dtype)
        step, first = (lstm, (zeros, zeros)) if cell == "LSTM" else (gru_after if linear_before_reset else gru, zeros)
        return jax.lax.scan(lambda c, g: step(r[0], rb, c, g), first, x @ w[0].T + wb)[1][:, None]

    return run


def jax_images() -> Made:
    """Convolutions, pools and norms of images."""
    jax: Any = importlib.import_module("jax")
    jnp, lax = jax.numpy, jax.lax

    def conv(x: Any, w: Any, b: Any = None, *, strides: Dims, pads: Dims = (0,) * 4, group: int = 1, **_: Any) -> Any:
        around = [(pads[0], pads[2]), (pads[1], pads[3])]
        y = lax.conv_general_dilated(x, w, strides, around, feature_group_count=group)
        return y if b is None else y + b[:, None, None]

    def up(x: Any, w: Any, b: Any, *, strides: Dims, **_: Any) -> Any:  # kernel and stride are the same
        n, _, h, v = x.shape
        y = jnp.einsum("nchv,cokl->nohkvl", x, w).reshape(n, w.shape[1], h * strides[0], v * strides[1])
        return y + b[:, None, None]

    def max_pool(x: Any, kernel_shape: Dims, strides: Dims, pads: Dims = (0,) * 4, ceil_mode: int = 0) -> Any:
        around = [(0, 0), (0, 0)]
        for d in (0, 1):
            size = x.shape[2 + d] + pads[d] + pads[d + 2]
            around.append((pads[d], pads[d + 2] + ceiled(size, kernel_shape[d], strides[d], ceil_mode)))
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, *kernel_shape), (1, 1, *strides), around)

    def average(x: Any, kernel_shape: Dims, strides: Dims) -> Any:
        sums = lax.reduce_window(x, 0.0, lax.add, (1, 1, *kernel_shape), (1, 1, *strides), "VALID")
        return sums / math.prod(kernel_shape)

    def batch_norm(x: Any, g: Any, b: Any, m: Any, v: Any, epsilon: float = 1e-5) -> Any:
        factor = g / jnp.sqrt(v + epsilon)
        return x * factor[:, None, None] + (b - m * factor)[:, None, None]

    return {
        "Conv": conv,
        "ConvTranspose": up,
        "BatchNormalization": batch_norm,
        "MaxPool": max_pool,
        "AveragePool": average,
        "GlobalAveragePool": lambda x: x.mean((2, 3), keepdims=True),
        "Resize": lambda x, roi, scales, *_, **__: x.repeat(int(scales[2]), 2).repeat(int(scales[3]), 3),
    }


def jax_table() -> Made:
    jax: Any = importlib.import_module("jax")
    jnp, lax = jax.numpy, jax.lax

    def layer_norm(x: Any, g: Any, b: Any, axis: int, epsilon: float) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + epsilon) * g + b

    return (
        common()
        | jax_images()
        | {
            "Relu": jax.nn.relu,
            "Sigmoid": jax.nn.sigmoid,
            "HardSwish": jax.nn.hard_swish,
            "HardSigmoid": lambda x, alpha, beta: jnp.clip(alpha * x + beta, 0.0, 1.0),
            "Gelu": lambda x: jax.nn.gelu(x, approximate=False),
            "Erf": lax.erf,
            "Clip": jnp.clip,
            "Concat": lambda *xs, axis: jnp.concatenate(xs, axis),
            "Split": lambda x, sizes, axis: jnp.split(x, np.cumsum(sizes)[:-1].tolist(), axis),
            "Transpose": lambda x, perm: jnp.transpose(x, perm),
            "Softmax": lambda x, axis: jax.nn.softmax(x, axis),
            "LayerNormalization": layer_norm,
            "Gather": lambda table, i, axis: jnp.take(table, i, axis=axis),
            "Cast": lambda x, to: x.astype(jnp.float32),
            "LSTM": jax_recurrent("LSTM"),
            "GRU": jax_recurrent("GRU"),
        }
    )


def paddle_table() -> Made:
    paddle: Any = importlib.import_module("paddle")
    F = paddle.nn.functional

    def max_pool(x: Any, kernel_shape: Dims, strides: Dims, pads: Dims = (0,) * 4, ceil_mode: int = 0) -> Any:
        return F.max_pool2d(x, kernel_shape, strides, list(pads[:2]), ceil_mode=bool(ceil_mode))

    return common() | {
        "Relu": F.relu,
        "Sigmoid": F.sigmoid,
        "HardSwish": F.hardswish,
        "HardSigmoid": lambda x, alpha, beta: F.hardsigmoid(x, alpha, beta),
        "Gelu": F.gelu,
        "Erf": paddle.erf,
        "Clip": paddle.clip,
        "Conv": lambda x, w, b=None, *, strides, pads=(0, 0), group=1, **_: F.conv2d(
            x, w, b, strides, list(pads[:2]), 1, group
        ),
        "ConvTranspose": lambda x, w, b=None, *, strides, **_: F.conv2d_transpose(x, w, b, strides),
        "BatchNormalization": lambda x, g, b, m, v, epsilon=1e-5: F.batch_norm(x, m, v, g, b, epsilon=epsilon),
        "MaxPool": max_pool,
        "AveragePool": lambda x, kernel_shape, strides: F.avg_pool2d(x, kernel_shape, strides),
        "GlobalAveragePool": lambda x: x.mean((2, 3), keepdim=True),
        "Concat": lambda *xs, axis: paddle.concat(list(xs), axis),
        "Split": lambda x, sizes, axis: paddle.split(x, sizes, axis),
        "Transpose": lambda x, perm: paddle.transpose(x, perm),
        "Softmax": lambda x, axis: F.softmax(x, axis),
        "LayerNormalization": lambda x, g, b, axis, epsilon: F.layer_norm(x, g.shape, g, b, epsilon),
        "Gather": lambda table, i, axis: table[:, i] if isinstance(i, int) else F.embedding(i, table),
        "Cast": lambda x, to: x.astype("float32"),
        "Resize": lambda x, roi, scales, *_, **__: F.interpolate(x, scale_factor=scales[2:], mode="nearest"),
    }


def tensorflow_table() -> Made:
    """Of transformers alone: `bench.to_tflite` has another converter for images."""
    tf: Any = importlib.import_module("tensorflow")

    def product(x: Any, w: Any) -> Any:
        if len(w.shape) > 2:
            return tf.matmul(x, w)
        y = tf.matmul(tf.reshape(x, [-1, x.shape[-1]]), w)  # what becomes a fully connected layer
        return tf.reshape(y, [*x.shape[:-1], w.shape[-1]])

    def patches(x: Any, w: Any, b: Any, *, strides: Dims, **_: Any) -> Any:
        y = tf.nn.conv2d(tf.transpose(x, [0, 2, 3, 1]), tf.transpose(w, [2, 3, 1, 0]), list(strides), "VALID")
        return tf.transpose(y + b, [0, 3, 1, 2])

    def layer_norm(x: Any, g: Any, b: Any, axis: int, epsilon: float) -> Any:
        mean = tf.reduce_mean(x, axis, keepdims=True)
        variance = tf.reduce_mean(tf.math.squared_difference(x, mean), axis, keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + epsilon) * g + b

    return common() | {
        "MatMul": product,
        "Gemm": lambda x, w, b, transB=0, **_: tf.matmul(x, w, transpose_b=bool(transB)) + b,
        "Reshape": lambda x, shape, **_: tf.reshape(x, shape),
        "Gelu": lambda x: tf.nn.gelu(x, approximate=False),
        "Conv": patches,
        "Concat": lambda *xs, axis: tf.concat(xs, axis),
        "Transpose": lambda x, perm: tf.transpose(x, perm),
        "Softmax": lambda x, axis: tf.nn.softmax(x, axis),
        "LayerNormalization": layer_norm,
        "Gather": lambda table, i, axis: tf.gather(table, i, axis=axis),
        "Cast": lambda x, to: tf.cast(x, tf.float32),
    }
