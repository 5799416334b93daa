"""Products and convolutions of 1 by 1 by fewer multiplications: Strassen's sums, where the error allows them."""
