"""Runs of experiments in a folder: existing rows, missing ones, and their cost."""
