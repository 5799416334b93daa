"""Files of other kinds, none of which a reader takes: what each is, and what to give in its place.

A row is told by the first bytes or by the name; the first that fits is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bolt_numba.base.records import record

_TENSORFLOW = "python -m tf2onnx.convert --saved-model FOLDER --output model.onnx"
_KERAS = f"ONNX: model.export(FOLDER), then {_TENSORFLOW}"
_TORCH = 'ONNX: torch.onnx.export(model, (x,), "model.onnx")'
_SKLEARN = "ONNX: skl2onnx.to_onnx(model, x[:1])"
_WEIGHTS = "ONNX: optimum-cli export onnx --model FOLDER OUT makes it of the original"
_SOURCE = "the model that it was made of"
_HUAWEI = (1141119).to_bytes(4, "little")
"""What stands behind the version in files of Huawei's Bolt."""


def _begins(*texts: bytes, at: int = 0) -> Callable[[bytes], bool]:
    return lambda head: head[at:].startswith(texts)


def _is_graph_def(head: bytes) -> bool:
    """A node first, and in it the name."""
    return head[:1] == b"\n" and b"\n" in head[2:4]


def _is_torch_zip(head: bytes) -> bool:
    return head.startswith(b"PK") and b"data.pkl" in head


def _is_pickle(head: bytes) -> bool:
    """Protocols 2 to 5."""
    return head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5")


@record(frozen=True)
class OtherKind:
    """What a file is, and what is wanted in its place.

    suffixes: of its name, in small letters; a whole name is one, too.  tells: of its first bytes.  both: whether it
    takes suffix and bytes.
    """

    what: str
    wanted: str
    suffixes: tuple[str, ...] = ()
    tells: Callable[[bytes], bool] | None = None
    both: bool = False

    def fits(self, head: bytes, name: str) -> bool:
        named = name.lower().endswith(self.suffixes)
        told = self.tells is not None and self.tells(head)
        return named and told if self.both else named or told


OTHER_KINDS: tuple[OtherKind, ...] = (
    OtherKind("a model of Huawei's Bolt", f"{_SOURCE} by X2bolt: it is read as it is", (), _begins(_HUAWEI, at=4)),
    OtherKind("safetensors, weights without operators", _WEIGHTS, (".safetensors",)),
    OtherKind("a model of Keras", _KERAS, (".keras",)),
    OtherKind("an HDF5 file, mostly a model of Keras", _KERAS, (".h5", ".hdf5"), _begins(b"\x89HDF")),
    OtherKind("a SavedModel of TensorFlow", f"ONNX: {_TENSORFLOW}", ("saved_model.pb",)),
    OtherKind(
        "a graph of TensorFlow",
        "ONNX: python -m tf2onnx.convert --graphdef FILE --inputs x:0 --outputs y:0 --output model.onnx",
        (".pb",),
        _is_graph_def,
        both=True,
    ),
    OtherKind("a model of PyTorch", _TORCH, (".pt", ".pth", ".pt2", ".ckpt"), _is_torch_zip),
    OtherKind("a model of Paddle Lite", f"{_SOURCE} by opt: .pdmodel with .pdiparams", (".nb",)),
    OtherKind(
        "a model of MindSpore",
        'ONNX: mindspore.export(net, x, file_name="model", file_format="ONNX")',
        (".ms", ".mindir"),
        _begins(b"MSL", at=4),
    ),
    OtherKind("a model of OpenVINO", f"{_SOURCE}, mostly ONNX", (".xml",), lambda head: b"<net name" in head),
    OtherKind("a model of Core ML", f"{_SOURCE}: of PyTorch, torch.onnx.export makes ONNX", (".mlmodel", ".mlpackage")),
    OtherKind(
        "a net of ncnn", f"{_SOURCE}: of PyTorch, torch.onnx.export makes ONNX", (".param",), _begins(b"7767517")
    ),
    OtherKind("an engine of TensorRT, for one GPU", f"{_SOURCE}, mostly ONNX", (".engine", ".plan"), _begins(b"ftrt")),
    OtherKind("arrays of NumPy", "a model; these may be its inputs", (".npy", ".npz"), _begins(b"\x93NUMPY")),
    OtherKind("a pickle, mostly of scikit-learn", _SKLEARN, (".pkl", ".pickle", ".joblib"), _is_pickle),
    OtherKind("an XML document", "a model", (), _begins(b"<?xml")),
    OtherKind("a zip archive", "the model in it: unpack it", (), _begins(b"PK\x03\x04")),
    OtherKind("a gzip archive", "the model in it: unpack it", (), _begins(b"\x1f\x8b")),
)


def other_kind(head: bytes, names: Iterable[str]) -> str:
    """What a file of this name is, or a folder of these, and what is wanted; "" where nobody knows."""
    for name in names:
        for kind in OTHER_KINDS:
            if kind.fits(head, name):
                return f"{kind.what}, wanted {kind.wanted}"
    return ""


def of_program(given: object) -> str:
    """What makes a model of an object of another library, behind what is wanted; "" where nobody knows."""
    if hasattr(given, "SerializeToString"):
        return ": model.SerializeToString() gives bytes"
    libraries = {kind.__module__.partition(".")[0] for kind in type(given).__mro__}
    ways = {"torch": _TORCH, "sklearn": _SKLEARN, "keras": _KERAS, "tensorflow": _KERAS}
    return next((f", as of {way}" for library, way in ways.items() if library in libraries), "")
