"""Models that leave Python: native programs, which C runs, and libraries made of them."""
