"""Matrix products: the sweeps, what they pack, what happens to a finished tile."""
