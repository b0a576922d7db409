"""Speed benchmarks: prefills, decoding steps and overhead, beside the stock cache and peers."""
