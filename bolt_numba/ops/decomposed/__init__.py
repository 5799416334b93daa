"""The decompositions of operators, by family; `bolt_numba.ops.decomposed.decompose` says what one is."""
