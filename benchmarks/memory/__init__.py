"""Memory benchmarks: predictions against measurements, and endless streams in fixed memory."""
