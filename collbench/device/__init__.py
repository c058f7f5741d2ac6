"""What a GPU does for us: memory, streams, events, graphs and kernels; the one place that imports cupy."""
