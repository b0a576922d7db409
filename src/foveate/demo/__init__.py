"""Small real models for demonstrations, tests and benchmarks that work without a model hub."""
