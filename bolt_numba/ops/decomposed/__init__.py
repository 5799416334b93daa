"""The decompositions of operators, by family; `bolt_numba.ops.decompose` says what one is."""
