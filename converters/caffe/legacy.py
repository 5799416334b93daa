"""Nets of older releases brought to today's form: layers of enumerated types (V1), and those inside others (V0).

Source: the semantics of BVLC's own upgrade.
"""

from __future__ import annotations

from typing import Any

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.converters.caffe.message import Message, integer, last, messages, text

_V1 = """NONE Accuracy BNLL Concat Convolution Data Dropout EuclideanLoss Flatten HDF5Data HDF5Output Im2col ImageData
InfogainLoss InnerProduct LRN MultinomialLogisticLoss Pooling ReLU Sigmoid Softmax SoftmaxWithLoss Split TanH
WindowData Eltwise Power SigmoidCrossEntropyLoss HingeLoss MemoryData ArgMax Threshold DummyData Slice MVN AbsVal
Silence ContrastiveLoss Exp Deconvolution"""
V1_TYPES = dict(enumerate(_V1.split()))
"""Types of V1 layers by their number."""
_SPELLED = {"SOFTMAX_LOSS": "SoftmaxWithLoss"}
_OF_FORKS = (
    "BatchNorm", "BN", "Crop", "ELU", "Embed", "Interp", "LSTM", "Normalize", "Permute", "PReLU", "Reshape",
    "ROIPooling", "Scale", "Tile", "Upsample",
)  # fmt: skip
"""Types that forks added to those with a number, under numbers of their own."""
_V1_NAMES = {name.upper(): name for name in (*V1_TYPES.values(), *_OF_FORKS)}

_V0_TYPES = {
    "accuracy": "Accuracy", "bnll": "BNLL", "concat": "Concat", "conv": "Convolution", "data": "Data",
    "dropout": "Dropout", "euclidean_loss": "EuclideanLoss", "flatten": "Flatten", "hdf5_data": "HDF5Data",
    "hdf5_output": "HDF5Output", "im2col": "Im2col", "images": "ImageData", "infogain_loss": "InfogainLoss",
    "innerproduct": "InnerProduct", "lrn": "LRN", "multinomial_logistic_loss": "MultinomialLogisticLoss",
    "pool": "Pooling", "relu": "ReLU", "sigmoid": "Sigmoid", "softmax": "Softmax", "softmax_loss": "SoftmaxWithLoss",
    "split": "Split", "tanh": "TanH", "window_data": "WindowData",
}  # fmt: skip
_V0_FIELDS = {
    "Convolution": "num_output biasterm weight_filler bias_filler pad kernelsize group stride",
    "Im2col": "pad kernelsize stride",
    "InnerProduct": "num_output biasterm weight_filler bias_filler",
    "Pooling": "pool pad kernelsize stride",
    "Dropout": "dropout_ratio",
    "LRN": "local_size alpha beta k",
    "Concat": "concat_dim",
    "Data": "batchsize cropsize",
    "ImageData": "batchsize cropsize new_height new_width",
    "WindowData": "batchsize cropsize",
    "HDF5Data": "batchsize",
}
_V0_MESSAGES = {
    "InnerProduct": "inner_product", "Im2col": "convolution", "LRN": "lrn", "ImageData": "image_data",
    "WindowData": "window_data", "HDF5Data": "hdf5_data",
}  # fmt: skip
_RENAMED = {"biasterm": "bias_term", "kernelsize": "kernel_size", "batchsize": "batch_size", "cropsize": "crop_size"}


def current_layers(net: Message, file: str) -> list[Message]:
    """The layers of a net of any age in today's form."""
    layers = list(messages(net, "layer", file))
    older = list(messages(net, "layers", file))
    if layers and older:
        raise InvalidModelError(f"{file}: got fields layer and layers, wanted one of them")
    if any("layer" in v for v in older):
        return _without_padding([_from_v0(v, file) for v in older], file)
    return layers + [_from_v1(v, file) for v in older]


def _from_v1(layer: Message, file: str) -> Message:
    name = str(last(layer, "name", ""))
    given = last(layer, "type", "NONE")
    number = given if isinstance(given, int) else int(given) if str(given).isdigit() and len(str(given)) < 9 else None
    spelled = text(given, f"{file}: layer '{name}': type").upper()
    made = (
        V1_TYPES.get(number) if number is not None else _SPELLED.get(spelled, _V1_NAMES.get(spelled.replace("_", "")))
    )
    kept: Message = {k: v for k, v in layer.items() if k not in ("type", "param", "blobs_lr", "weight_decay")}
    shared = [{"name": [v]} for v in layer.get("param", ()) if not isinstance(v, dict)]
    return {**kept, "type": [str(given) if made is None else made], **({"param": list[Any](shared)} if shared else {})}


def _from_v0(outer: Message, file: str) -> Message:
    inner = next(messages(outer, "layer", file), {})
    old = str(last(inner, "type", ""))
    type = _V0_TYPES.get(old, old)
    fields = {_RENAMED.get(f, f): inner[f] for f in _V0_FIELDS.get(type, "").split() if f in inner}
    message = f"{_V0_MESSAGES.get(type, type.lower())}_param"
    made: Message = {"type": [type], **({message: [fields]} if fields else {})}
    for name, values in (("name", inner.get("name")), ("bottom", outer.get("bottom")), ("top", outer.get("top"))):
        if values:
            made[name] = values
    if type == "padding":
        made["pad"] = inner.get("pad", [0])
    return made


def _without_padding(layers: list[Message], file: str) -> list[Message]:
    """The layers without those that only pad: what reads their result pads itself."""
    padded: dict[str, tuple[Any, Any]] = {}
    made = []
    for layer in layers:
        if last(layer, "type") == "padding":
            padded[str(last(layer, "top", ""))] = last(layer, "bottom", ""), last(layer, "pad")
            continue
        found = padded.get(str(last(layer, "bottom", "")))
        if found is not None:
            param = {"Convolution": "convolution_param", "Pooling": "pooling_param"}.get(str(last(layer, "type")))
            if param is None:
                raise InvalidModelError(f"{file}: padding: got a layer {last(layer, 'type')} behind it, wanted conv")
            integer(found[1], f"{file}: padding")
            fields = {**dict(last(layer, param, {})), "pad": [found[1]]}
            layer = {**layer, "bottom": [found[0]], param: [fields]}
        made.append(layer)
    return made
