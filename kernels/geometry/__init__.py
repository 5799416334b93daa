"""What no device decides: plan-time numbers that makers of every device read, and helpers that their code names."""
