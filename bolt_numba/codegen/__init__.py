"""Loop nests as text; `kernels` compiles them."""
