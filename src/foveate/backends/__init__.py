"""Engines whose caches can be compressed."""
