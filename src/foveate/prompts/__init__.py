"""Messages, images and videos as the tensors that a model reads."""
