"""The measuring runs: cases, rounds of pairs and hunts, training steps, parameter servers, channels, and GPU kernels."""
