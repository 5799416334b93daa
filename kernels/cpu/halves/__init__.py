"""Products and convolutions of numbers of 16 bits."""
