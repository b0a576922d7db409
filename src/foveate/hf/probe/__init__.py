"""Second readings of a prompt, and questions about it."""
