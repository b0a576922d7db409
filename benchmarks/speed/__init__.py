"""Time: prefills, decoding steps, what a call costs, beside the stock cache and peers."""
