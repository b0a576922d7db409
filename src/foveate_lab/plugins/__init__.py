"""Plug-ins of Foveate for evaluation programs, one module each."""
