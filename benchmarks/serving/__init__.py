"""Serving benchmarks: vLLM with a policy beside stock vLLM."""
