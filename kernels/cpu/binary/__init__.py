"""Values of one bit: packing them, and products of them by counting bits."""
