"""Inputs that image and video processors make of blank files."""
