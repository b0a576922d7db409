"""Cache layers of transformers under a policy, and the state that the layers of a cache share."""
