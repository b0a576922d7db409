"""Foveate inside the programs that people evaluate with: one module for each."""
