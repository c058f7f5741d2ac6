"""Analysis of measured rows: launches combined, slow ranks, pairs and links, latency and bandwidth, and comparisons of runs."""
