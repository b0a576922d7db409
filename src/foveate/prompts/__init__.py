"""Conversion of messages, images and videos into a model's input tensors."""
