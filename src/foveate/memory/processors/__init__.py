"""Inputs that image and video processors produce for blank files."""
