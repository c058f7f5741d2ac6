"""What rows mean: launches together, slow ranks, latency and bandwidth, and how two runs compare."""
