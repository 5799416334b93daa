"""Weights of 2 to 8 bits: panels of planes of bits, products of them with rounded rows, rows of them."""
