"""The implementation of scripts/mutants: deliberate defects, each of which some test has to detect."""
