"""The cache of a prompt: a layer as stages see it, its slots, and the pairs that are stored."""
