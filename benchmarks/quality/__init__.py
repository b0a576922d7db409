"""Quality benchmarks: answers by method, budget and protocol."""
