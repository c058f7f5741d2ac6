"""Theoretical and measured reference rates: expected bandwidth and hard limits of operations on a machine."""
