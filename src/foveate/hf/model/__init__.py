"""Parts of a transformers model: its decoder, devices, weights and visual tokens."""
