"""Element by element: pointwise operators and chains, casts, quantisation, half precision."""
