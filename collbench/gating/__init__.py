"""The gate: whether a cluster got slower than a baseline of allocations explains."""
