"""Measurement of methods' profiles on a model."""
