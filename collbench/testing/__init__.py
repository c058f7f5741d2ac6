"""Measurements in test suites: the plug-in for pytest."""
