"""The measuring runs: test cases, rounds of pairs and hunts, training steps, parameter servers, channels, and GPU kernels."""
