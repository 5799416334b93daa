"""ONNX files to graphs, and back."""
