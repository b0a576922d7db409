"""The experiments of each paper: a file each, or a folder where there are many."""
