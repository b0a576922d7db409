"""Starting an engine under a policy, and what is refused then."""
