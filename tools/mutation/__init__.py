"""The implementation of tools/mutants: deliberate defects that the tests must detect."""
