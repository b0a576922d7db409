"""Endless prompts."""
