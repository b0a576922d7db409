"""Servers: vLLM with a policy beside vLLM without."""
