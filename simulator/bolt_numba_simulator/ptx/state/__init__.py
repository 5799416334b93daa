"""What instructions act on: their text and types, registers, spaces of memory and the order of accesses."""
