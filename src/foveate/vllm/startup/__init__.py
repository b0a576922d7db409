"""Start of an engine under a policy, and the checks that refuse unsupported settings."""
