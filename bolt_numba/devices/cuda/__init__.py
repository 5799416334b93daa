"""NVIDIA GPUs: `device` is what the runtime knows; below it stands `driver`, or the simulator of another package."""
