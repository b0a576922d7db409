"""Triton kernels of the operators, a module each, under the operator's own name."""
