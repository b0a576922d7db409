"""Worker: attention over compressed prompts, and compression after each pass."""
