"""Compression of a prompt under a policy: reading, budgets, the pipeline, sums of methods."""
