"""Sums of products: of matrices, convolutions, integers, bits, and distances."""
