"""Scheduler and KV cache manager: they plan requests and free the blocks of gaps."""
