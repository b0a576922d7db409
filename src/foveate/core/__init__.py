"""Nouns and verbs of Foveate: torch only, no paper names, no model names."""
