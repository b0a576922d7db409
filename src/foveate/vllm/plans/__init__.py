"""Plans for a request: its settings, its boundaries and the blocks that it holds."""
