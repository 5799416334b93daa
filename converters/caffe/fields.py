"""Names of the fields in a binary net: numbers of BVLC's caffe.proto, of SSD's and of Bolt's where BVLC has none.

Forks use one number for several things.  So a layer's own parameters are told by the layer's type, not by the number
of the field that holds them.  Source: the .proto files, for numbers and names.
"""

from __future__ import annotations

import functools

_FIELDS = {
    "net": "name=1 layers=2:v1 input=3 input_dim=4:i input_shape=8:dims state=6:state layer=100:layer",
    "dims": "dim=1:i",
    "state": "phase=1 level=2 stage=3",
    "rule": "phase=1 min_level=2 max_level=3 stage=4 not_stage=5",
    "param": "name=1 share_mode=2 lr_mult=3 decay_mult=4",
    "layer": "name=1 type=2 bottom=3 top=4 param=6:param include=8:rule exclude=9:rule phase=10"
    " transform_param=100:transform",
    "v1": "layer=1:v0 bottom=2 top=3 name=4 type=5 include=32:rule exclude=33:rule param=1001"
    " transform_param=36:transform",
    "v0": "name=1 type=2 num_output=3 biasterm=4 weight_filler=5:filler bias_filler=6:filler pad=7 kernelsize=8 group=9"
    " stride=10 pool=11 dropout_ratio=12 local_size=13 alpha=14 beta=15 k=22 batchsize=19 cropsize=20 new_num=60"
    " new_channels=61 new_height=62 new_width=63 concat_dim=65",
    "filler": "type=1 value=2 min=3 max=4 mean=5 std=6 sparse=7 variance_norm=8",
    "transform": "scale=1 mirror=2 crop_size=3 mean_file=4 mean_value=5:f force_color=6 force_gray=7 crop_h=11"
    " crop_w=12",
    "argmax": "out_max_val=1 top_k=2 axis=3",
    "batch_norm": "use_global_stats=1 moving_average_fraction=2 eps=3",
    "bias": "axis=1 num_axes=2 filler=3:filler",
    "clip": "min=1 max=2",
    "concat": "concat_dim=1 axis=2",
    "convolution": "num_output=1 bias_term=2 pad=3:i kernel_size=4:i group=5 stride=6:i weight_filler=7:filler"
    " bias_filler=8:filler pad_h=9 pad_w=10 kernel_h=11 kernel_w=12 stride_h=13 stride_w=14 engine=15 axis=16"
    " force_nd_im2col=17 dilation=18:i",
    "crop": "axis=1 offset=2:i",
    "data": "source=1 scale=2 mean_file=3 batch_size=4 crop_size=5 mirror=6 rand_skip=7 backend=8"
    " force_encoded_color=9 prefetch=10",
    "detection_output": "num_classes=1 share_location=2 background_label_id=3 nms_param=4:nms save_output_param=5:save"
    " code_type=6 keep_top_k=7 variance_encoded_in_target=8 confidence_threshold=9 visualize=10"
    " visualize_threshold=11 save_file=12 clip=1000 normalized_bbox=1001",
    "nms": "nms_threshold=1 top_k=2 eta=3",
    "save": "output_directory=1",
    "dropout": "dropout_ratio=1 scale_train=2",
    "dummy_data": "data_filler=1:filler num=2:i channels=3:i height=4:i width=5:i shape=6:dims",
    "eltwise": "operation=1 coeff=2:f stable_prod_grad=3",
    "elu": "alpha=1",
    "embed": "num_output=1 input_dim=2 bias_term=3 weight_filler=4:filler bias_filler=5:filler transpose=6",
    "exp": "base=1 scale=2 shift=3",
    "flatten": "axis=1 end_axis=2",
    "hdf5_data": "source=1 batch_size=2 shuffle=3",
    "image_data": "source=1 scale=2 mean_file=3 batch_size=4 crop_size=5 mirror=6 rand_skip=7 shuffle=8 new_height=9"
    " new_width=10 is_color=11 root_folder=12",
    "inner_product": "num_output=1 bias_term=2 weight_filler=3:filler bias_filler=4:filler axis=5 transpose=6",
    "input": "shape=1:dims",
    "log": "base=1 scale=2 shift=3",
    "lrn": "local_size=1 alpha=2 beta=3 norm_region=4 k=5 engine=6",
    "memory_data": "batch_size=1 channels=2 height=3 width=4",
    "mvn": "normalize_variance=1 across_channels=2 eps=3",
    "norm": "across_spatial=1 scale_filler=2:filler channel_shared=3 eps=4",
    "parameter": "shape=1:dims",
    "permute": "order=1:i",
    "pooling": "pool=1 kernel_size=2 stride=3 pad=4 kernel_h=5 kernel_w=6 stride_h=7 stride_w=8 pad_h=9 pad_w=10"
    " engine=11 global_pooling=12 round_mode=13",
    "power": "power=1 scale=2 shift=3",
    "prelu": "filler=1:filler channel_shared=2",
    "prior_box": "min_size=1:f max_size=2:f aspect_ratio=3:f flip=4 clip=5 variance=6:f img_size=7 img_h=8 img_w=9"
    " step=10 step_h=11 step_w=12 offset=13",
    "recurrent": "num_output=1 weight_filler=2:filler bias_filler=3:filler debug_info=4 expose_hidden=5",
    "reduction": "operation=1 axis=2 coeff=3",
    "relu": "negative_slope=1 engine=2",
    "reorg": "stride=1 reverse=2",
    "reshape": "shape=1:dims axis=2 num_axes=3",
    "roi_pooling": "pooled_h=1 pooled_w=2 spatial_scale=3",
    "psroi_pooling": "spatial_scale=1 output_dim=2 group_size=3",
    "scale": "axis=1 num_axes=2 filler=3:filler bias_term=4 bias_filler=5:filler",
    "sigmoid": "engine=1",
    "slice": "slice_dim=1 slice_point=2:i axis=3",
    "softmax": "engine=1 axis=2",
    "spp": "pyramid_height=1 pool=2 engine=6",
    "swish": "beta=1",
    "tanh": "engine=1",
    "threshold": "threshold=1",
    "tile": "axis=1 tiles=2",
    "window_data": "source=1 scale=2 mean_file=3 batch_size=4 crop_size=5",
    "yolo_detection_output": "side=1 num_classes=2 num_box=3 coords=4 confidence_threshold=5 nms_threshold=6"
    " biases=7:f",
    "yolov3_detection_output": "num_classes=1 num_box=2 confidence_threshold=3 nms_threshold=4 biases=5:f"
    " anchors_scale=6:i mask_group_num=7 mask=8:i",
    "shuffle_channel": "group=1",
    "matmul": "transpose_a=1 transpose_b=2",
    "attention": "num_heads=1 from_sequence_length=2 to_sequence_length=3",
    "attention_mask": "attention_length=1 same_length=2 mask=3",
    "axis_mean": "axis=1",
    "bilateral_slice_apply": "mode=1",
    "check": "operation=1",
    "convert_color": "src=1 dst=2 dt=3",
    "cum": "operation=1 exclusive=2 reverse=3 axis=4",
    "lut": "type=1 mode=2",
    "onehot": "axis=1 depth=2 off_value=3 on_value=4",
    "relative_position_embed": "num_output=1 input_dim=2 bias_term=3 weight_filler=4:filler bias_filler=5:filler"
    " transpose=6 axis=7",
    "relative_shift": "axis=1 shift_length=2",
    "shared_weight": "data_type=1 shape=2:dims",
    "preallocated_memory": "data_type=1 shape=2:dims value=3",
    "squeeze": "axis=1:i",
    "unsqueeze": "axis=1:i",
    "interp": "height=1 width=2 zoom_factor=3 shrink_factor=4 pad_beg=5 pad_end=6",
    "upsample": "scale=1 scale_h=2 scale_w=3 pad_out_h=4 pad_out_w=5 upsample_h=6 upsample_w=7",
}
"""Messages: ``name=number``, and of what: packed integers (i), packed floats (f), another message."""

NUMBERED = {
    102: "accuracy", 103: "argmax", 104: "concat", 106: "convolution", 107: "data", 108: "dropout", 109: "dummy_data",
    110: "eltwise", 111: "exp", 112: "hdf5_data", 115: "image_data", 117: "inner_product", 118: "lrn",
    119: "memory_data", 120: "mvn", 121: "pooling", 122: "power", 123: "relu", 124: "sigmoid", 125: "softmax",
    126: "slice", 127: "tanh", 128: "threshold", 129: "window_data", 131: "prelu", 132: "spp", 133: "reshape",
    134: "log", 135: "flatten", 136: "reduction", 137: "embed", 138: "tile", 139: "batch_norm", 140: "elu",
    141: "bias", 142: "scale", 143: "input", 144: "crop", 145: "parameter", 146: "recurrent", 147: "swish",
    148: "clip", 202: "permute", 203: "prior_box", 204: "detection_output", 206: "norm",
}  # fmt: skip
"""Parameters of a current layer, by BVLC's and SSD's numbers."""
NUMBERED_V1 = {
    9: "concat", 10: "convolution", 11: "data", 12: "dropout", 13: "hdf5_data", 15: "image_data", 17: "inner_product",
    18: "lrn", 19: "pooling", 20: "window_data", 21: "power", 22: "memory_data", 23: "argmax", 24: "eltwise",
    25: "threshold", 26: "dummy_data", 30: "relu", 31: "slice", 34: "mvn", 37: "tanh", 38: "sigmoid", 39: "softmax",
    41: "exp",
}  # fmt: skip
BY_TYPE = {
    "PReLU": "prelu", "LRN": "lrn", "MVN": "mvn", "ELU": "elu", "ReLU": "relu", "TanH": "tanh", "SPP": "spp",
    "ArgMax": "argmax", "Deconvolution": "convolution", "Im2col": "convolution", "LSTM": "recurrent",
    "RNN": "recurrent", "Normalize": "norm", "ConvolutionDepthwise": "convolution",
    "DepthwiseConvolution": "convolution", "ROIPooling": "roi_pooling", "PSROIPooling": "psroi_pooling",
    "HDF5Data": "hdf5_data", "SoftmaxWithLoss": "softmax", "Resize": "interp", "MatMul": "matmul", "OneHot": "onehot",
    "PreAllocatedMemory": "preallocated_memory",
}  # fmt: skip
"""Parameters of a layer where their name is not the type's in snake case."""

ENUMS = {
    "pool": ("MAX", "AVE", "STOCHASTIC"),
    "round_mode": ("CEIL", "FLOOR"),
    "norm_region": ("ACROSS_CHANNELS", "WITHIN_CHANNEL"),
    "code_type": ("", "CORNER", "CENTER_SIZE", "CORNER_SIZE"),
    "eltwise.operation": ("PROD", "SUM", "MAX", "DIV"),
    "dt": ("FLOAT32", "INT32", "UINT32", "INT8", "UINT8", "FLOAT16"),
    "check.operation": ("EQUAL", "GREAT", "GREATEQUAL"),
    "lut.mode": ("", "LINEAR", "AREA", "NEAREST", "CUBIC", "LANCZOS4"),
    "cum.operation": ("PROD", "SUM", "MAX", "DIV"),
    "reduction.operation": ("", "SUM", "ASUM", "SUMSQ", "MEAN"),
}
"""Names of numbers, by field, with its message where two fields share a name."""

PHASES = ("TRAIN", "TEST")


@functools.cache
def fields_of(message: str) -> dict[int, tuple[str, str]]:
    """Name and kind of each field of a message, by number."""
    made = {}
    for entry in _FIELDS.get(message, "").split():
        name, _, rest = entry.partition("=")
        at, _, kind = rest.partition(":")
        made[int(at)] = name, kind
    return made


def parameters_of(layer: str) -> str | None:
    """The message of a layer's own parameters, None where it is not known."""
    name = BY_TYPE.get(layer)
    if name is None:
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in layer).lstrip("_")
    return name if name in _FIELDS else None
