"""A model of transformers: its decoder, devices, weights and visual tokens."""
