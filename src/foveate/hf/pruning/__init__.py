"""Pruning of visual tokens before they are computed."""
