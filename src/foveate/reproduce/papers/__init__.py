"""The experiments of each paper: one file each."""
