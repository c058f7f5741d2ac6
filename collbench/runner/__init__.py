"""Where world, operation, backend, timing and results meet: one request becomes one run folder."""
