"""The built-in operations."""
