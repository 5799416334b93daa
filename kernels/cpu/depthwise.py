"""Depthwise convolution, channels last: one filter per channel, vector lanes over channels."""
