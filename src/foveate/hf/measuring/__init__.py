"""Measuring methods' profiles on a model."""
