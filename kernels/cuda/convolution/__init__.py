"""Convolutions, channels last: products over what filters see, depthwise ones, transposed ones, and those of bytes."""
