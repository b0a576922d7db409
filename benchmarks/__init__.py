"""Measurements that Foveate stands on: speed, memory, quality and serving, each in a folder."""
