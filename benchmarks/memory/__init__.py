"""Bytes: what fills the memory, and streams without an end in a fixed one."""
