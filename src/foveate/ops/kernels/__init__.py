"""Triton kernels of the operators, one module each, with the operators' names.

A function here has the operator's arguments; see there for shapes and meanings.
"""
