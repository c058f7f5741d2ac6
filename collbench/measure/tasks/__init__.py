"""The measuring runs: cells, rounds of pairs and hunts, training steps, parameter servers, channels, and GPU kernels."""
