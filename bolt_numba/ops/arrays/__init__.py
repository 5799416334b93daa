"""Operators on arrays as such: shapes, parts, indices, reductions, dtypes, random numbers, transforms."""
