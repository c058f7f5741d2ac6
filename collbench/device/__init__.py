"""GPU support: memory, streams, events, graphs and kernels; the only package that imports cupy."""
