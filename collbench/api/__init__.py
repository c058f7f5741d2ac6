"""The Python API: stored runs as values and as DataFrames, measurements, comparisons and verdicts."""
