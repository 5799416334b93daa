"""Reading Paddle files."""
