"""Loading models from directories and hubs, and saying what they lack."""
