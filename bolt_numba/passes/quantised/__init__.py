"""What passes do about narrow numbers: rules of stage ``quantise``, and floats of 16 bits."""
