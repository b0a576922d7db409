"""The laboratory: evaluation, reproduction, reports, benchmarks and converters."""
