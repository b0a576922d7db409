"""Prompts that never end."""
