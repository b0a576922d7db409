"""Attention of one forward pass over a compressed cache layer.

``dispatch`` chooses the function that computes a pass; the other modules provide these functions.
All take tensors, and return the output together with the by-products that the policy's score reads.
"""
