"""Pictures and pages of what was kept."""
