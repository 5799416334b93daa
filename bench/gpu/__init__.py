"""Everything that a GPU is asked, in one run: ``python -m bench.gpu``; dry with ``--device cuda-sim``."""
