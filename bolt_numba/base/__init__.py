"""What everything stands on: settings, budgets, files, records, the border of errors."""
