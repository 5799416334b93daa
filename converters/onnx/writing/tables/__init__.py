"""Writers of operators that ONNX spells otherwise."""
