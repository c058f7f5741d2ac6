"""A backend and an operation for collbench, found by the entry points in pyproject.toml."""
