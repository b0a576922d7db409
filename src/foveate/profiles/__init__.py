"""Profiles: what methods measured on a model beforehand, in files."""
