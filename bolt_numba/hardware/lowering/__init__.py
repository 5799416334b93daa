"""Rules that take operators apart for devices that lack them: a driver lists those that it wants."""
