"""The attention of one pass over what a cache layer holds.

``dispatch`` says which of the ways computes a pass, and the others are these ways. All take
tensors, and return the output with what they made on the way for the policy's score.
"""
