"""What is measured and told of the plans of a session."""
