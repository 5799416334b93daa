"""Sessions: from a loaded graph to runs, with what they take, give, and share."""
