"""Hooks that attach a policy to a model's calls, and the restoring of the model."""
