"""What the charts of a sweep share: series, curves, limits, fits, their tables."""
