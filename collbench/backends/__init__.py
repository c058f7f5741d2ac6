"""Backends, one file per library."""
