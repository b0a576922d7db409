"""Triton kernels of the operators, a module each, under the operator's own name.

An operator and what launches its kernels have the same arguments, whose shapes and meanings stand
at the operator.
"""
