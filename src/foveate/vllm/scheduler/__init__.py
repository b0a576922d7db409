"""The scheduler's side."""
