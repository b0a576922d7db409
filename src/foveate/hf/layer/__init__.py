"""A cache layer of transformers under a policy, and what the layers of a cache share."""
