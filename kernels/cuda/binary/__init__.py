"""Binary layers: bits of comparisons, and sums of products of twofold values by counts of bits."""
