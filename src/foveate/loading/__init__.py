"""Loading of models from directories and hubs, and checks for missing parts."""
