"""Profiles: measurements of methods on a model, in files."""
