"""Convolutions: by the sweeps, depthwise, grouped, transposed, by Winograd's algorithm, in bands."""
