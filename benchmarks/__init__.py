"""Benchmarks of speed, memory, quality and serving, each in a folder."""
