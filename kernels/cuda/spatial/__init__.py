"""Windows and samples of images: pools, resizing, sampling at points and in regions; the first of a line."""
