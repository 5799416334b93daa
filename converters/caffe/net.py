"""What of a net is run: layers of phase TEST, level 0, without stages; its inputs; its outputs.

Source: BVLC's Net::FilterNet, Net::Init.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.records import record
from bolt_numba.converters.caffe.fields import PHASES
from bolt_numba.converters.caffe.legacy import current_layers
from bolt_numba.converters.caffe.message import Message, dims, integer, last, messages, named

DATA = ("Data", "ImageData", "HDF5Data", "MemoryData", "WindowData", "AnnotatedData", "Python", "DummyData")
"""Layers that read what a caller gives here: their results become inputs.  Python may also be something else."""
TRAINING = (
    "Accuracy", "ContrastiveLoss", "EuclideanLoss", "HDF5Output", "HingeLoss", "InfogainLoss",
    "MultinomialLogisticLoss", "SigmoidCrossEntropyLoss", "SoftmaxWithLoss", "SmoothL1Loss", "MultiBoxLoss",
    "DetectionEvaluate", "CenterLoss", "TripletLoss", "FocalLoss",
)  # fmt: skip
"""Layers that say how good a net is.  They go; what predicts stays."""
MAX_LAYERS = 100_000


@record(frozen=True)
class Layer:
    """A layer that runs.  fields: its message."""

    name: str
    type: str
    bottoms: tuple[str, ...]
    tops: tuple[str, ...]
    fields: Any

    def parameters(self, what: str) -> Iterator[tuple[str, Message]]:
        """Messages of the layer's own parameters by name."""
        for name in self.fields:
            if name.endswith("_param") and name not in ("transform_param", "loss_param"):
                for value in messages(self.fields, name, what):
                    yield name, value


@record(frozen=True)
class Net:
    """inputs: sizes by name, None where the file does not say them.  layers: those that run.  outputs: names."""

    name: str
    inputs: dict[str, tuple[int, ...] | None]
    layers: list[Layer]
    outputs: list[str]


def net_of(message: Message, file: str) -> Net:
    """The net that runs of what a file says.  Raises InvalidModelError."""
    found = current_layers(message, file)
    if len(found) > MAX_LAYERS:
        raise InvalidModelError(f"{file}: got {len(found)} layers, wanted at most {MAX_LAYERS}")
    inputs = _declared(message, file)
    if not found and not inputs:
        raise InvalidModelError(f"{file}: got no layers, wanted a net of Caffe")
    state = next(messages(message, "state", file), {})
    stages = set(named(state, "stage", file))
    kept = [_layer(v, file) for v in found if _runs(v, stages, file)]
    dropped = {top: layer for v in found for layer in [_layer(v, file)] if layer.type in DATA for top in layer.tops}
    layers = list(_running(kept, inputs, file))
    read = {name for layer in layers for name in layer.bottoms}
    for name in {name for layer in kept if layer.type in TRAINING for name in layer.bottoms} - read:
        inputs.pop(name, None)
    made = set(inputs)
    for layer in layers:
        for name in layer.bottoms:
            if name not in made and name in dropped:
                inputs[name] = _data_shape(dropped[name], dropped[name].tops.index(name), file)
        made.update(layer.bottoms, layer.tops)
    name = "".join(named(message, "name", file)[-1:])
    return Net(name, inputs, layers, _outputs(layers, inputs))


def _layer(fields: Message, file: str) -> Layer:
    name, type = ("".join(named(fields, key, file)[-1:]) for key in ("name", "type"))
    return Layer(name, type, tuple(named(fields, "bottom", file)), tuple(named(fields, "top", file)), fields)


def _declared(message: Message, file: str) -> dict[str, tuple[int, ...] | None]:
    """Inputs that the net itself declares, by input_shape or by four sizes each."""
    names = named(message, "input", file)
    shapes = [dims(v, f"{file}: input_shape") for v in messages(message, "input_shape", file)]
    sizes = [integer(v, f"{file}: input_dim") for v in message.get("input_dim", ())]
    if sizes and not shapes:
        if len(sizes) != 4 * len(names):
            raise InvalidModelError(f"{file}: input_dim: got {len(sizes)} sizes, wanted {4 * len(names)}")
        shapes = [tuple(sizes[i : i + 4]) for i in range(0, len(sizes), 4)]
    if shapes and len(shapes) not in (1, len(names)):
        raise InvalidModelError(f"{file}: input_shape: got {len(shapes)}, wanted one for each of {len(names)} inputs")
    if len(shapes) == 1:
        shapes = shapes * len(names)
    return {name: _wanted(shapes[i], file) if shapes else None for i, name in enumerate(names)}


def _wanted(shape: tuple[int, ...], file: str) -> tuple[int, ...]:
    if any(d < 0 or d >= 1 << 31 for d in shape) or len(shape) > 32:
        raise InvalidModelError(f"{file}: shape of an input: got {list(shape)[:32]}, wanted sizes")
    return shape


def _runs(layer: Message, stages: set[str], file: str) -> bool:
    include, exclude = (list(messages(layer, key, file)) for key in ("include", "exclude"))
    if include and exclude:
        raise InvalidModelError(f"{file}: layer '{last(layer, 'name', '')}': got include and exclude, wanted one")
    if include:
        return any(_meets(rule, stages, file) for rule in include)
    return not any(_meets(rule, stages, file) for rule in exclude)


def _meets(rule: Message, stages: set[str], file: str) -> bool:
    phase = last(rule, "phase", "TEST")
    if phase not in ("TEST", 1, "1"):
        if phase not in (0, "0", PHASES[0]):
            raise InvalidModelError(f"{file}: phase: got {phase!r}, wanted one of {PHASES}")
        return False
    low, high = (integer(last(rule, key, 0), f"{file}: {key}") for key in ("min_level", "max_level"))
    return (
        low <= 0 <= high
        and stages.issuperset(named(rule, "stage", file))
        and stages.isdisjoint(named(rule, "not_stage", file))
    )


def _running(layers: list[Layer], inputs: dict[str, tuple[int, ...] | None], file: str) -> Iterator[Layer]:
    """Layers that compute.  Those that only give or judge go: results of the first kind become inputs."""
    wanted = {name for layer in layers if layer.type not in TRAINING for name in layer.bottoms}
    for layer in layers:
        if layer.type == "Input":
            shapes = [
                _wanted(dims(v, file), file)
                for _, param in layer.parameters(file)
                for v in messages(param, "shape", file)
            ]
            if shapes and len(shapes) not in (1, len(layer.tops)):
                raise InvalidModelError(
                    f"{file}: layer '{layer.name}': got {len(shapes)} shapes, wanted one or {len(layer.tops)}"
                )
            for i, top in enumerate(layer.tops):
                inputs[top] = shapes[i if len(shapes) > 1 else 0] if shapes else None
        elif layer.type in DATA and not layer.bottoms and not _is_constant(layer, file):
            for i, top in enumerate(layer.tops):
                if top in wanted:
                    inputs[top] = _data_shape(layer, i, file)
        elif layer.type == "SoftmaxWithLoss":
            yield Layer(layer.name, "Softmax", layer.bottoms[:1], layer.tops[:1] or (layer.name,), layer.fields)
        elif layer.type not in TRAINING:
            yield layer


def _is_constant(layer: Layer, file: str) -> bool:
    """Whether a layer of made-up data always gives the same numbers."""
    if layer.type != "DummyData":
        return False
    fillers = [f for _, param in layer.parameters(file) for f in messages(param, "data_filler", file)]
    return all(last(f, "type", "constant") == "constant" for f in fillers)


def _data_shape(layer: Layer, top: int, file: str) -> tuple[int, ...] | None:
    """Sizes of a data layer's result as far as its parameters tell: batch, channels, height, width; -1 unknown."""
    param = next((v for _, v in layer.parameters(file)), {})
    what = f"{file}: layer '{layer.name}'"
    shapes = [dims(v, file) for v in messages(param, "shape", file)]
    if shapes:
        return _wanted(shapes[top if len(shapes) > 1 else 0], file)

    def size(source: Message, *names: str) -> int:
        found = [integer(last(source, n), what) for n in names if n in source]
        return next((n for n in found if 0 < n < 1 << 31), -1)

    batch = size(param, "batch_size", "num")
    if top > 0:
        return (batch,)
    transform = next(messages(layer.fields, "transform_param", file), {})
    crop = size(transform, "crop_size") if "crop_size" in transform else size(param, "crop_size")
    height, width = size(param, "new_height", "height"), size(param, "new_width", "width")
    height, width = (crop, crop) if crop > 0 else (height, width)
    values = len(transform.get("mean_value", ()))
    channels = size(param, "channels")
    if channels < 0:
        channels = values if values > 1 else -1
    return (batch, channels, height, width)


def _outputs(layers: list[Layer], inputs: dict[str, tuple[int, ...] | None]) -> list[str]:
    """Inputs and results that no later layer reads, in order."""
    left: dict[str, None] = dict.fromkeys(inputs)
    for layer in layers:
        for name in layer.bottoms:
            left.pop(name, None)
        for name in layer.tops:
            left.pop(name, None)
            left[name] = None
    return list(left)
