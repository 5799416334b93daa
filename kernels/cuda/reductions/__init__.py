"""What folds, normalises or orders along axes."""
