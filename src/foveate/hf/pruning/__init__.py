"""Visual tokens that are not computed."""
