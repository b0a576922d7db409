"""The papers' equations transcribed word for word: slow, and independent of Foveate."""
