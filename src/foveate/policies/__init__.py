"""Policies as data: specs, parameters, amounts, methods and the protocols of their stages."""
