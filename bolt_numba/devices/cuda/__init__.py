"""NVIDIA GPUs, and one that is simulated: `device` is what the runtime knows, `driver` and `simulated` are below it."""
