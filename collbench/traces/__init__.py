"""Traces of jobs: readers of recorded communication, one model of it, and the step that a replay runs."""
