"""Along axes: sums, extremes, norms, softmax, running sums, sorting."""
