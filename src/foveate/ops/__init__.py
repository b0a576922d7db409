"""Operators on raw tensors, one folder each: a dispatching API beside its plain reference.

``impl="reference"`` is the oracle. Nothing falls back: an implementation works or raises.
"""
