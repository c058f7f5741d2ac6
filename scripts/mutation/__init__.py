"""The implementation of scripts/mutants: deliberate defects that the tests must detect."""
