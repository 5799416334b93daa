"""Nets of Caffe with made-up weights: text and caffemodel, as files of that format are.

python -m bench.caffe_nets FOLDER [NAME...]   writes NAME.prototxt and NAME.caffemodel
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bolt_numba.converters.wire import as_varint
from bolt_numba.types import Array
from tests.models import folder


def _field(number: int, content: bytes) -> bytes:
    return as_varint(number << 3 | 2) + as_varint(len(content)) + content


def blob(array: Array) -> bytes:
    """A BlobProto: shape 7, packed data 5."""
    sizes = b"".join(as_varint(d) for d in array.shape)
    return _field(7, _field(1, sizes)) + _field(5, np.ascontiguousarray(array, "<f4").tobytes())


def caffemodel(name: str, layers: dict[str, tuple[str, list[Array]]]) -> bytes:
    """Weights by layer, each with its type: a NetParameter of names, types and blobs."""
    parts = [_field(1, name.encode())]
    for layer, (kind, blobs) in layers.items():
        inner = _field(1, layer.encode()) + _field(2, kind.encode()) + b"".join(_field(7, blob(a)) for a in blobs)
        parts.append(_field(100, inner))
    return b"".join(parts)


REVISION = 1
"""Part of the folder's name: raise it when a net changes, so that no stale file is used."""


class CaffeNet:
    """A net that grows layer by layer; every method returns the name of its result."""

    def __init__(self, name: str, *shape: int, seed: int = 0) -> None:
        self.name, self.weights = name, dict[str, tuple[str, list[Array]]]()
        self.rng = np.random.default_rng(seed)
        dims = " ".join(f"dim: {d}" for d in shape)
        self.lines = [
            f'name: "{name}"',
            f'layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ {dims} }} }} }}',
        ]
        self.channels = {"data": shape[1]}

    def layer(self, kind: str, name: str, bottoms: Sequence[str], param: str = "", top: str | None = None) -> str:
        """A layer without weights; its result has as many channels as the first bottom."""
        top = name if top is None else top
        inputs = " ".join(f'bottom: "{v}"' for v in bottoms)
        self.lines.append(f'layer {{ name: "{name}" type: "{kind}" {inputs} top: "{top}" {param} }}')
        self.channels[top] = self.channels[bottoms[0]]
        return top

    def conv(
        self,
        name: str,
        x: str,
        out: int,
        kernel: int,
        stride: int = 1,
        *,
        group: int = 1,
        bias: bool = True,
        pad: int | None = None,
        dilation: int = 1,
        gain: float = 1.0,
    ) -> str:
        inner = self.channels[x] // group
        w = self.rng.normal(0, gain * (2 / (inner * kernel * kernel)) ** 0.5, (out, inner, kernel, kernel)).astype(
            np.float32
        )
        self.weights[name] = "Convolution", [w, *([self.rng.normal(0, 0.1, out).astype(np.float32)] if bias else [])]
        pad = dilation * (kernel // 2) if pad is None else pad
        param = f"num_output: {out} kernel_size: {kernel} stride: {stride} pad: {pad} group: {group}"
        param += f" dilation: {dilation}" * (dilation > 1) + " bias_term: false" * (not bias)
        self.layer("Convolution", name, [x], f"convolution_param {{ {param} }}")
        self.channels[name] = out
        return name

    def norm(self, x: str) -> str:
        """BatchNorm and Scale, in place."""
        n, rng = self.channels[x], self.rng
        mean, variance = rng.normal(0, 0.1, n), rng.uniform(0.5, 1.5, n)
        self.weights[f"{x}_bn"] = (
            "BatchNorm",
            [2 * mean.astype(np.float32), 2 * variance.astype(np.float32), np.full(1, 2, np.float32)],
        )
        self.weights[f"{x}_scale"] = (
            "Scale",
            [rng.uniform(0.5, 1.5, n).astype(np.float32), rng.normal(0, 0.1, n).astype(np.float32)],
        )
        self.layer("BatchNorm", f"{x}_bn", [x], "batch_norm_param { use_global_stats: true }", top=x)
        return self.layer("Scale", f"{x}_scale", [x], "scale_param { bias_term: true }", top=x)

    def relu(self, x: str) -> str:
        return self.layer("ReLU", f"{x}_relu", [x], top=x)

    def pool(self, name: str, x: str, param: str) -> str:
        return self.layer("Pooling", name, [x], f"pooling_param {{ {param} }}")

    def concat(self, name: str, xs: Sequence[str], axis: int = 1) -> str:
        self.layer("Concat", name, xs, f"concat_param {{ axis: {axis} }}")
        self.channels[name] = sum(self.channels[x] for x in xs)
        return name

    def dense(self, name: str, x: str, size: int, out: int) -> str:
        w = self.rng.normal(0, size**-0.5, (out, size)).astype(np.float32)
        self.weights[name] = "InnerProduct", [w, np.zeros(out, np.float32)]
        self.layer("InnerProduct", name, [x], f"inner_product_param {{ num_output: {out} }}")
        self.channels[name] = out
        return name

    def text(self) -> bytes:
        return "\n".join([*self.lines, ""]).encode()

    def model(self) -> bytes:
        return caffemodel(self.name, self.weights)


def resnet50() -> CaffeNet:
    net = CaffeNet("ResNet-50", 1, 3, 224, 224)
    x = net.relu(net.norm(net.conv("conv1", "data", 64, 7, 2, bias=False)))
    x = net.pool("pool1", x, "pool: MAX kernel_size: 3 stride: 2")
    for stage, (count, width) in enumerate(zip((3, 4, 6, 3), (64, 128, 256, 512), strict=True)):
        for i in range(count):
            name, stride = f"res{stage + 2}{'abcdef'[i]}", 2 if i == 0 and stage else 1
            short = x if i else net.norm(net.conv(f"{name}_branch1", x, 4 * width, 1, stride, bias=False))
            y = net.relu(net.norm(net.conv(f"{name}_branch2a", x, width, 1, stride, bias=False)))
            y = net.relu(net.norm(net.conv(f"{name}_branch2b", y, width, 3, bias=False)))
            y = net.norm(net.conv(f"{name}_branch2c", y, 4 * width, 1, bias=False))
            x = net.relu(net.layer("Eltwise", name, [short, y]))
    x = net.pool("pool5", x, "pool: AVE kernel_size: 7 stride: 1")
    net.layer("Softmax", "prob", [net.dense("fc1000", x, 2048, 1000)])
    return net


def squeezenet() -> CaffeNet:
    net = CaffeNet("SqueezeNet-1.1", 1, 3, 227, 227)
    x = net.pool("pool1", net.relu(net.conv("conv1", "data", 64, 3, 2, pad=0)), "pool: MAX kernel_size: 3 stride: 2")
    for i, (squeeze, expand) in enumerate(
        ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256)), 2
    ):
        s = net.relu(net.conv(f"fire{i}/squeeze1x1", x, squeeze, 1))
        parts = [net.relu(net.conv(f"fire{i}/expand{k}x{k}", s, expand, k)) for k in (1, 3)]
        x = net.concat(f"fire{i}/concat", parts)
        if i in (3, 5):
            x = net.pool(f"pool{i}", x, "pool: MAX kernel_size: 3 stride: 2")
    x = net.relu(net.conv("conv10", net.layer("Dropout", "drop9", [x], top=x), 1000, 1))
    net.layer("Softmax", "prob", [net.pool("pool10", x, "pool: AVE global_pooling: true")])
    return net


def mobilenet_ssd() -> CaffeNet:
    """MobileNet v1 with six maps of boxes of 21 classes, 300 x 300 pixels."""
    net = CaffeNet("MobileNet-SSD", 1, 3, 300, 300)
    x = net.relu(net.norm(net.conv("conv0", "data", 32, 3, 2, bias=False)))
    maps = []
    plan = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))
    for i, (out, stride) in enumerate(plan, 1):
        x = net.relu(
            net.norm(net.conv(f"conv{i}/dw", x, net.channels[x], 3, stride, group=net.channels[x], bias=False))
        )
        x = net.relu(net.norm(net.conv(f"conv{i}", x, out, 1, bias=False)))
        maps += [x] * (i in (11, 13))
    for i, (middle, out) in enumerate(((256, 512), (128, 256), (128, 256), (64, 128)), 14):
        x = net.relu(net.norm(net.conv(f"conv{i}_1", x, middle, 1, bias=False)))
        x = net.relu(net.norm(net.conv(f"conv{i}_2", x, out, 3, 2, bias=False)))
        maps.append(x)
    return ssd_heads(net, maps, classes=21, sizes=(60.0, 105.0, 150.0, 195.0, 240.0, 285.0, 300.0))


def ssd_heads(net: CaffeNet, maps: list[str], classes: int, sizes: Sequence[float]) -> CaffeNet:
    """The net with boxes of each map, their classes, and what is left of them."""
    columns: dict[str, list[str]] = {"loc": [], "conf": [], "prior": []}
    for i, x in enumerate(maps):
        count = 3 if i == 0 else 6
        for kind, out in (("loc", 4), ("conf", classes)):
            y = net.conv(f"{x}_mbox_{kind}", x, count * out, 1, gain=0.02 if kind == "loc" else 0.3)
            y = net.layer("Permute", f"{y}_perm", [y], "permute_param { order: 0 order: 2 order: 3 order: 1 }")
            columns[kind].append(net.layer("Flatten", f"{y}_flat", [y], "flatten_param { axis: 1 }"))
        large = "" if i == 0 else f"max_size: {sizes[i + 1]} aspect_ratio: 3.0"
        param = f"min_size: {sizes[i]} aspect_ratio: 2.0 {large} flip: true clip: false " + " ".join(
            f"variance: {v}" for v in (0.1, 0.1, 0.2, 0.2)
        )
        columns["prior"].append(
            net.layer("PriorBox", f"{x}_mbox_priorbox", [x, "data"], f"prior_box_param {{ {param} }}")
        )
    loc, conf = net.concat("mbox_loc", columns["loc"]), net.concat("mbox_conf", columns["conf"])
    prior = net.concat("mbox_priorbox", columns["prior"], axis=2)
    y = net.layer(
        "Reshape", "mbox_conf_reshape", [conf], f"reshape_param {{ shape {{ dim: 0 dim: -1 dim: {classes} }} }}"
    )
    y = net.layer("Softmax", "mbox_conf_softmax", [y], "softmax_param { axis: 2 }")
    y = net.layer("Flatten", "mbox_conf_flatten", [y], "flatten_param { axis: 1 }")
    nms = (
        "nms_param { nms_threshold: 0.45 top_k: 100 } code_type: CENTER_SIZE keep_top_k: 100 confidence_threshold: 0.25"
    )
    param = f"num_classes: {classes} share_location: true background_label_id: 0 {nms}"
    net.layer("DetectionOutput", "detection_out", [loc, y, prior], f"detection_output_param {{ {param} }}")
    return net


NETS: dict[str, Any] = {"resnet50": resnet50, "squeezenet": squeezenet, "mobilenet_ssd": mobilenet_ssd}


def write(target: Path, name: str) -> Path:
    """The two files of a net; returns the text's path."""
    net, path = NETS[name](), target / f"{name}.prototxt"
    target.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".caffemodel").write_bytes(net.model())
    path.write_bytes(net.text())
    return path


def file(name: str) -> Path:
    """The text of a net in the folder of `tests.models`, its weights beside it; made where it is not there."""
    path = folder() / f"caffe-{REVISION}" / f"{name}.prototxt"
    return path if path.is_file() else write(path.parent, name)


if __name__ == "__main__":
    for chosen in sys.argv[2:] or NETS:
        write(Path(sys.argv[1]), chosen)
