"""Measurement of cases: timing loops, sampling, verification, references and limits, and evidence from each host's counters."""
